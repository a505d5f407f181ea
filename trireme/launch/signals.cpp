#include <trireme/launch/signals.h>

#include <trireme/base/error.h>

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace trireme::launch {
namespace {

bool ignored(int number) {
  struct sigaction now{};
  ::sigaction(number, nullptr, &now);
  return now.sa_handler == SIG_IGN;
}

} // namespace

SignalWatch::SignalWatch() : ignore_interrupt_key_(ignored(SIGINT)) {
  sigset_t watched;
  ::sigemptyset(&watched);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    if (number != SIGHUP || !ignored(SIGHUP)) {
      ::sigaddset(&watched, number);
    }
  }
  fd_ = Descriptor(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) {
    throw Error("launch", concat("cannot watch for signals: ", std::strerror(errno)));
  }
  ::pthread_sigmask(SIG_BLOCK, &watched, &mask_before_);
  struct sigaction plain{};
  plain.sa_handler = SIG_DFL; // if SIGCHLD is ignored, exit codes are lost
  ::sigaction(SIGCHLD, &plain, &child_before_);
  plain.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &plain, &broken_pipe_before_);
}

SignalWatch::~SignalWatch() {
  while (next()) {
  }
  ::sigaction(SIGPIPE, &broken_pipe_before_, nullptr);
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

std::optional<int> SignalWatch::next() {
  signalfd_siginfo info;
  while (::read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    const auto number = static_cast<int>(info.ssi_signo);
    if (number != SIGINT || !ignore_interrupt_key_ || info.ssi_code != SI_KERNEL) {
      return number;
    }
  }
  return std::nullopt;
}

} // namespace trireme::launch
