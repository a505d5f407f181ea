#pragma once

#include <trireme/base/error.h>

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

namespace trireme::aio {

/// Starts a thread that receives none of the process's signals; debuggers show it as "trireme-aio". Errors: Error if
/// the system has no more threads.
template <typename Run>
std::thread quiet_thread(Run run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto restore = [&] { pthread_sigmask(SIG_SETMASK, &before, nullptr); };
  try {
    std::thread thread(std::move(run));
    restore();
    pthread_setname_np(thread.native_handle(), "trireme-aio");
    return thread;
  } catch (const std::system_error& error) {
    restore();
    throw Error("aio", concat("cannot start a thread for transfers: ", error.code().message()),
                "Raise the limit of threads (ulimit -u, pids of the container).");
  }
}

} // namespace trireme::aio
