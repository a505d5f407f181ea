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

/// An operation under way: its summary and its ticket at the recorder.
struct OpTicket {
  OpSummary op;
  uint64_t record = 0;
};

/// The operations of one group that its device has not finished, as far as known. Threads that begin operations add
/// them, the watch's thread asks the device. Thread-safe; asking holds no lock that the others need.
class DeviceOperations {
 public:
  using Clock = std::chrono::steady_clock;

  /// One of them.
  struct Entry {
    OpTicket ticket;
    std::shared_ptr<DeviceMark> mark;
    /// Whoever began it let go of it without waiting: it is forgotten.
    std::atomic<bool> dropped{false};
    Clock::time_point since;
    // Only for who asks the device.
    int64_t steps = 0;
    bool gone = false;
  };

  /// Cost: a lock that is held for a moment.
  std::shared_ptr<Entry> add(OpTicket ticket, std::shared_ptr<DeviceMark> mark);

  struct Findings {
    std::vector<OpTicket> finished;
    /// The first that the device will not finish: it says so, or has not done it for `patience`, since it was begun or
    /// since the operation of its kind (collectives, messages) before it was finished, so that a host may run far ahead
    /// of its device.
    std::optional<std::pair<OpTicket, Trouble>> trouble;
  };
  /// Asks the device for each of them. One thread at a time.
  Findings look(std::chrono::milliseconds patience);

  /// The one that the device has been at for the longest time, and since when.
  std::optional<std::pair<OpSummary, Clock::time_point>> oldest() const;
  void clear();
  size_t count() const;

 private:
  std::vector<std::shared_ptr<Entry>> entries() const;

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Entry>> entries_;
};

} // namespace trireme::comm
