#pragma once

#include <trireme/comm/backend.h>
#include <trireme/comm/progress.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace trireme::comm {

/// An operation in progress: its summary and its recorder ticket.
struct OpTicket {
  OpSummary op;
  uint64_t record = 0;
};

/// The operations of one group that its device has not finished, as far as known. Threads that begin operations add
/// them; the watch's thread polls the device. Thread-safe; polling holds no lock that other threads need.
class DeviceOperations {
 public:
  using Clock = std::chrono::steady_clock;

  /// One of them.
  struct Entry {
    OpTicket ticket;
    std::shared_ptr<DeviceMark> mark;
    /// Dropped without wait(): it is forgotten.
    std::atomic<bool> dropped{false};
    Clock::time_point since;
    // Only for the thread that polls the device.
    int64_t steps = 0;
    bool gone = false;
  };

  /// Cost: a short lock.
  std::shared_ptr<Entry> add(OpTicket ticket, std::shared_ptr<DeviceMark> mark);

  struct Findings {
    std::vector<OpTicket> finished;
    /// The first operation that the device will not finish: it failed, or was not done within `patience`. That time
    /// counts from its begin, or from the end of the previous operation of its kind (collectives, messages): a host may
    /// run far ahead of its device.
    std::optional<std::pair<OpTicket, Trouble>> trouble;
  };
  /// Polls the device for each of them. One thread at a time.
  Findings look(std::chrono::milliseconds patience);

  /// The operation on which the device has worked longest, and since when.
  std::optional<std::pair<OpSummary, Clock::time_point>> oldest() const;
  void clear();
  size_t count() const;

 private:
  std::vector<std::shared_ptr<Entry>> entries() const;

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Entry>> entries_;
};

} // namespace trireme::comm
