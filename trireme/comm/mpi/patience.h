#pragma once

#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>

namespace trireme::comm::mpi {

/// Pauses between two polls of an operation that MPI progresses only during polls. Polls again at once for a moment if
/// every rank has a core, then sleeps as briefly as the system can. Sleeps longer once the operation takes longer than
/// its bytes explain. Sleeps instead of sched_yield(): a sleeper gets its core back at once, a yielding thread waits
/// for the full time slice of a computing program.
class Patience {
 public:
  Patience(int64_t bytes, bool spins)
      : start_(Clock::now()),
        spin_(spins ? kSpin : std::chrono::microseconds(0)),
        short_(kShort + std::chrono::nanoseconds(bytes)) {}
  ~Patience() {
    if (slack_ > 0) {
      ::prctl(PR_SET_TIMERSLACK, slack_);
    }
  }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

  void pause() {
    const auto waited = Clock::now() - start_;
    if (waited < spin_) {
      return;
    }
    if (slack_ == 0) {
      slack_ = ::prctl(PR_GET_TIMERSLACK);
      ::prctl(PR_SET_TIMERSLACK, 1L);
    }
    ::usleep(waited < short_ ? 1 : kLongMicroseconds);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kSpin{200};
  static constexpr std::chrono::milliseconds kShort{2};
  static constexpr unsigned kLongMicroseconds = 50;
  Clock::time_point start_;
  std::chrono::nanoseconds spin_;
  std::chrono::nanoseconds short_;
  /// Previous timer slack of the thread in ns; the default of 50 us would dominate a short sleep.
  int slack_ = 0;
};

} // namespace trireme::comm::mpi
