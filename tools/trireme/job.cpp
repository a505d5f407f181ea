#include "job.h"

#include <trireme/base/error.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

namespace trireme::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kGrace{2};
/// Output beyond this size is read and dropped.
constexpr size_t kMostText = 1 << 20;

class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) {
      throw Error("trireme", "cannot make a pipe.");
    }
  }
  ~Pipe() {
    close(0);
    close(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int operator[](int end) const { return ends_[static_cast<size_t>(end)]; }
  void close(int end) {
    int& descriptor = ends_[static_cast<size_t>(end)];
    if (descriptor >= 0) {
      ::close(std::exchange(descriptor, -1));
    }
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
};

[[noreturn]] void become(const std::vector<std::string>& words, const Variables& variables, int out, int err) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t ends; // the caller may keep them for the job that it will start
  ::sigemptyset(&ends);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    ::sigaddset(&ends, number);
  }
  ::sigprocmask(SIG_UNBLOCK, &ends, nullptr);
  std::vector<char*> arguments;
  for (const std::string& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  for (const auto& [name, value] : variables) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::execvp(arguments.front(), arguments.data());
  ::_exit(127);
}

/// Reads what is available; false at the end.
bool read_some(int from, std::string& text) {
  std::array<char, 4096> buffer;
  const ssize_t got = ::read(from, buffer.data(), buffer.size());
  if (got > 0 && text.size() < kMostText) {
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

} // namespace

JobResult run_job(const std::vector<std::string>& words, const Variables& variables,
                  std::chrono::milliseconds deadline) {
  Pipe out;
  Pipe err;
  const pid_t child = ::fork();
  if (child < 0) {
    throw Error("trireme", "cannot start another process.");
  }
  if (child == 0) {
    become(words, variables, out[1], err[1]);
  }
  out.close(1);
  err.close(1);
  JobResult result;
  auto end = Clock::now() + deadline;
  int status = 0;
  bool ended = false;
  bool last_signal = false;
  while (true) {
    std::array<pollfd, 2> ready = {pollfd{out[0], POLLIN, 0}, pollfd{err[0], POLLIN, 0}};
    ::poll(ready.data(), ready.size(), ended ? 0 : 20); // a closed one is -1, which poll() ignores
    bool any = false;
    for (int stream = 0; stream < 2; ++stream) {
      if (ready[static_cast<size_t>(stream)].revents != 0) {
        any = true;
        Pipe& from = stream == 0 ? out : err;
        if (!read_some(from[0], stream == 0 ? result.output : result.errors)) {
          from.close(0);
        }
      }
    }
    if (ended && !any) { // ignores output of a process that outlives it
      break;
    }
    ended = ended || ::waitpid(child, &status, WNOHANG) == child;
    if (!ended && !last_signal && Clock::now() >= end) {
      last_signal = result.killed;
      ::kill(-child, result.killed ? SIGKILL : SIGTERM);
      result.killed = true;
      end = Clock::now() + kGrace;
    }
  }
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

const Variables& under_mpirun() {
  static const Variables variables = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                      {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                      {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"}};
  return variables;
}

} // namespace trireme::tools
