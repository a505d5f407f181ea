#pragma once

#include <pthread.h>
#include <csignal>
#include <ctime>

namespace trireme::checkpoint {

/// Blocks SIGXFSZ on the calling thread while it lives, so that a file above RLIMIT_FSIZE gives
/// the errno EFBIG. By default the signal would end the process in the middle of a save.
class SizeSignalBlock {
 public:
  SizeSignalBlock() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~SizeSignalBlock() {
    if (sigismember(&before_, SIGXFSZ) == 0) {
      const timespec now{};
      while (sigtimedwait(&signal_, nullptr, &now) == SIGXFSZ) {
      }
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
  }
  SizeSignalBlock(const SizeSignalBlock&) = delete;
  SizeSignalBlock& operator=(const SizeSignalBlock&) = delete;

 private:
  sigset_t signal_{};
  sigset_t before_{};
};

} // namespace trireme::checkpoint
