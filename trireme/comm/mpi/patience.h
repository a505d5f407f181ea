#pragma once

#include <sched.h>
#include <unistd.h>

#include <chrono>

namespace trireme::comm::mpi {

/// What to do between two looks at an operation that MPI only moves while it is looked at: look again at once for a moment,
/// then let other threads run, and sleep when the operation takes longer than its bytes explain.
class Patience {
 public:
  explicit Patience(int64_t bytes) : yield_until_(Clock::now() + kAtLeast + std::chrono::nanoseconds(bytes)) {}

  void pause() {
    if (++looks_ < kSpins) {
      return;
    }
    if (Clock::now() < yield_until_) {
      ::sched_yield();
    } else {
      ::usleep(kSleepMicroseconds);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kSpins = 64;
  static constexpr std::chrono::milliseconds kAtLeast{2};
  static constexpr unsigned kSleepMicroseconds = 50;
  Clock::time_point yield_until_;
  int looks_ = 0;
};

} // namespace trireme::comm::mpi
