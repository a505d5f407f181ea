#include <trireme/launch/guardian.h>

#include <trireme/base/error.h>

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace trireme::launch {
namespace {

struct Watch {
  int pipe;
  std::vector<pid_t> ranks;  // with room for all: another thread may have held the allocator at the clone
};

int guard(void* argument) {
  auto& [pipe, ranks] = *static_cast<Watch*>(argument);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  ::setsid();
  ::prctl(PR_SET_NAME, "trireme-guard");
  // The write end above all: as long as anybody holds it, the launcher's death does not show.
  close_all_but(pipe);
  pid_t message = 0;
  for (;;) {
    const ssize_t got = ::read(pipe, &message, sizeof(message));
    if (got == sizeof(message)) {
      std::erase(ranks, std::abs(message));
      if (message > 0 && ranks.size() < ranks.capacity()) {
        ranks.push_back(message);
      }
    } else if (got == 0 || errno != EINTR) {
      break;
    }
  }
  for (const pid_t rank : ranks) {
    ::kill(-rank, SIGKILL);
  }
  ::_exit(0);
}

} // namespace

Guardian::Guardian(int ranks) {
  Pipe pipe = make_pipe();
  Watch watch = {pipe.read.get(), {}};
  watch.ranks.reserve(static_cast<size_t>(ranks));
  // Without an exit signal it stays out of the way of waitpid(-1), which is how the launcher asks whether anything of a
  // job is left. Without CLONE_VM it has its own copy of everything, the stack too.
  std::vector<char> stack(256 * 1024);
  char* const top = stack.data() + stack.size() - (reinterpret_cast<uintptr_t>(stack.data() + stack.size()) % 64);
  pid_ = ::clone(guard, top, 0, &watch);
  if (pid_ < 0) {
    throw Error("launch", concat("cannot start another process: ", std::strerror(errno)),
                "Raise the limits on processes and memory.");
  }
  pipe_ = std::move(pipe.write);
}

Guardian::~Guardian() {
  pipe_.close();
  while (::waitpid(pid_, nullptr, __WCLONE) < 0 && errno == EINTR) {
  }
}

void Guardian::forget(pid_t rank) {
  const pid_t message = -rank;
  (void)!::write(pipe_.get(), &message, sizeof(message));
}

} // namespace trireme::launch
