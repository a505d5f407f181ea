#pragma once

#include "sim_device.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme::sim {

inline constexpr int kMostDevices = 4;
inline constexpr int kStreamsEach = 16;
inline constexpr int kClocks = kMostDevices * kStreamsEach;

/// How far each stream is known to have come.
using Clock = std::array<int64_t, kClocks>;
void join(Clock& a, const Clock& b);

/// Who did what to which memory, and what orders it. All functions but the constructor want `mutex` to be held.
class Timeline {
 public:
  std::recursive_mutex mutex;

  // The threads of the host. Each knows what it has waited for.
  static Clock& host();

  /// Starts a kernel on the stream: after everything that this thread has waited for.
  void launch(const std::string& kernel, int stream);
  /// The kernel that was launched last on the stream reads or writes these bytes; of the stream's device, unless it
  /// copies between two.
  void touch(const std::string& kernel, int stream, uintptr_t begin, uintptr_t end, bool writes,
             bool between_devices = false);
  /// This thread waits for work that has come as far as `done`. `counts`: it is a synchronisation of the host.
  void host_waits(const Clock& done, const std::string& what, bool counts = true);
  const Clock& now(int stream) const { return streams_[static_cast<size_t>(stream)]; }
  /// Time of a stream, on which each kernel and each copy takes a millisecond and nothing else takes any.
  double milliseconds(int stream) const { return static_cast<double>(now(stream)[static_cast<size_t>(stream)]); }
  void wait(int stream, const Clock& done) {
    join(streams_[static_cast<size_t>(stream)], done);
    times_[static_cast<size_t>(stream)] = std::max(times_[static_cast<size_t>(stream)], time_of(done));
  }
  /// Milliseconds since the start on the clock of spans(), for this thread of the host.
  static double& host_time();
  /// When work that has come so far is done.
  double time_of(const Clock& done) const;

  /// Earlier owners of the memory may still use it on that stream: who uses it on another one waits for this place in
  /// the stream.
  void allocated(uintptr_t begin, int64_t bytes, int stream);
  struct Freed {
    int64_t bytes = 0;
    std::optional<Clock> recorded; ///< how far the recorded streams were; the block is spare when they have come so far
  };
  /// Reports streams that still use the block and are not recorded.
  Freed freed(uintptr_t begin);
  void recorded(uintptr_t begin, int stream);
  /// The stream that the block was allocated on.
  int stream_of(uintptr_t begin) const;

  /// A copy into pinned memory: the bytes are there when a thread has waited for it.
  void copy_to_host(int stream, void* to, std::vector<char> bytes);
  /// A copy from pinned memory, which must stay as it is until then.
  void copy_from_host(int stream, const void* from, int64_t bytes);
  void pinned_freed(const void* begin, int64_t bytes);
  /// Reports what the host has done so far to pinned memory whose copies are under way.
  void check_copies();

  std::vector<std::string> problems;
  std::vector<std::string> synchronisations;
  std::vector<int64_t> launched_behind; // each of them
  int polls = 1;
  bool keeps_spans = false;
  Copied copied;
  std::vector<Span> spans;

 private:
  struct Access {
    uintptr_t begin, end;
    bool writes;
    int stream;
    int64_t clock;
    std::string kernel;
  };
  struct Block {
    int64_t bytes;
    int stream;
    std::set<int> recorded;
    std::vector<Access> accesses;
  };
  struct HostCopy {
    int stream;
    int64_t clock;
    char* host;
    std::vector<char> bytes;
    bool to_host;
  };
  void arrive(const Clock& known);
  bool untouched(const HostCopy& copy) const;
  void deliver(const HostCopy& copy);
  void order_copies(int stream, const char* begin, size_t bytes, bool writes);
  void report(const std::string& problem);

  std::array<Clock, kClocks> streams_{};
  std::array<double, kClocks> times_{};           // when each stream is done
  std::array<std::vector<double>, kClocks> ends_; // of each kernel of each stream
  std::map<uintptr_t, Block> blocks_;
  std::deque<HostCopy> copies_; // under way
};

Timeline& timeline();
/// Number of the clock of a stream.
int clock_of(int device, int64_t stream);
std::string stream_name(int clock);

} // namespace trireme::sim
