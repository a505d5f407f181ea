#pragma once

#include <trireme/launch/descriptor.h>

#include <signal.h>

#include <optional>

namespace trireme::launch {

/// Turns signals to this process into readable events while it lives, and puts back what was there before.
///
/// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are read from fd(). SIGHUP stays ignored under nohup. A shell
/// starts background jobs with SIGINT ignored because Ctrl-C is not meant for them: then Ctrl-C is left out here too, but
/// `kill -INT` counts. SIGPIPE is ignored: writes fail instead.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const {
    return fd_.get();
  }
  /// The next signal that came, nullopt when there is none.
  std::optional<int> next();

  /// What the ranks get: mask and SIGPIPE as they were.
  const sigset_t& mask_before() const {
    return mask_before_;
  }
  const struct sigaction& broken_pipe_before() const {
    return broken_pipe_before_;
  }

 private:
  Descriptor fd_;
  sigset_t mask_before_{};
  struct sigaction broken_pipe_before_ {};
  struct sigaction child_before_ {};
  bool ignore_interrupt_key_ = false;
};

} // namespace trireme::launch
