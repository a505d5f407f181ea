#pragma once

#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// `on_device`: no thread waits on the host any more, and the device is not known to have finished it.
enum class OpState { queued, started, on_device, done, failed };
const char* to_string(OpState state);

/// One collective or message of this rank.
struct Record {
  /// A literal, or from keep_name().
  std::string_view group;
  /// Counts the operations of its kind (collectives, messages) in the group, from 1.
  int64_t number = 0;
  /// "all_reduce", ...
  const char* op = "";
  int64_t bytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  /// The caller's name for the tensor: "bucket 3".
  std::string what;
  /// Group rank of the other side of a send or recv, else -1.
  int peer = -1;
  /// Becomes `done` or `failed` in a thread's wait(), or, for a device's operation, when the watch sees its
  /// end.
  OpState state = OpState::queued;
  /// Microseconds since the process's recorder started; 0 before the event. Finished: the host need not wait for it any
  /// more.
  int64_t queued_us = 0;
  int64_t finished_us = 0;
};

/// Remembers the last 1024 operations of all groups of this process.
///
/// Cost: about 0.1 us per operation, one mutex. Thread-safe.
class Recorder {
 public:
  static constexpr size_t kCapacity = 1024;

  /// The recorder that groups write to.
  static Recorder& process();

  Recorder();
  /// Records a new operation and returns its ticket for change(). `group` and `op` must never be freed.
  uint64_t add(std::string_view group, int64_t number, const char* op, int64_t bytes, c10::ScalarType dtype,
               std::string_view what, int peer = -1);
  /// Does nothing if the record was overwritten meanwhile.
  void change(uint64_t ticket, OpState state);

  /// Oldest first.
  std::vector<Record> records() const;
  /// When the recorder started, in microseconds of the steady clock: to compare records with other times.
  int64_t begin_us() const { return begin_us_; }
  /// {"operations": [{"group":, "number":, "op":, "bytes":, "dtype":, "what":, "state":, "queued_us":, "finished_us":},
  /// ...]}
  nlohmann::json json() const;

 private:
  int64_t now_us() const;

  mutable std::mutex mutex_;
  int64_t begin_us_;
  uint64_t next_ = 0;
  std::vector<Record> ring_;
  /// Their states: a start is marked without the lock.
  std::vector<std::atomic<OpState>> states_;
};

} // namespace trireme::comm
