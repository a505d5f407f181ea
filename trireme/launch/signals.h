#pragma once

#include <trireme/launch/descriptor.h>

#include <signal.h>

#include <optional>

namespace trireme::launch {

/// Turns signals to this process into readable events while it lives; the destructor restores the earlier handling.
///
/// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are read from fd(). SIGHUP stays ignored under nohup. A shell ignores
/// SIGINT in background jobs, so Ctrl-C is ignored here too if it was, but `kill -INT` counts. SIGPIPE is ignored:
/// writes fail instead.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_.get(); }
  /// The next signal, nullopt if there is none.
  std::optional<int> next();

  /// The signal mask and SIGPIPE handling from before, for the ranks.
  const sigset_t& mask_before() const { return mask_before_; }
  const struct sigaction& broken_pipe_before() const { return broken_pipe_before_; }

 private:
  Descriptor fd_;
  sigset_t mask_before_{};
  struct sigaction broken_pipe_before_{};
  struct sigaction child_before_{};
  bool ignore_interrupt_key_ = false;
};

} // namespace trireme::launch
