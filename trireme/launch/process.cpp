#include <trireme/launch/process.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/descriptor.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) {
    all.push_back(const_cast<char*>(text.c_str()));
  }
  all.push_back(nullptr);
  return all;
}

// Everything the child needs, made before the fork: after it nothing may allocate.
struct ChildPlan {
  const SpawnRequest& request;
  const char* program;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  pid_t parent;
  int failure_fd;
};

[[noreturn]] void become(const ChildPlan& plan) {
  const SpawnRequest& request = plan.request;
  // If the parent died before the request took effect, nothing would kill this process.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) {
    ::_exit(127);
  }
  ::setsid();
  ::dup2(request.stdin_fd, 0);
  ::dup2(request.stdout_fd, 1);
  ::dup2(request.stderr_fd, 2);
  close_on_exec_from(3);
  for (const int fd : request.keep) {
    ::fcntl(fd, F_SETFD, 0);
  }
  // An interactive shell's children and background jobs inherit ignored signals; these must reach the rank.
  for (const int number : {SIGINT, SIGTERM, SIGQUIT, SIGCHLD}) {
    ::signal(number, SIG_DFL);
  }
  ::sigaction(SIGPIPE, &request.on_broken_pipe, nullptr);
  ::sigprocmask(SIG_SETMASK, &request.signal_mask, nullptr);
  ::execve(plan.program, plan.arguments.data(), plan.environment.data());
  const int reason = errno;
  (void)!::write(plan.failure_fd, &reason, sizeof(reason));
  ::_exit(127);
}

// 0 when the program runs, otherwise the errno.
int wait_for_exec(int fd) {
  int reason = 0;
  ssize_t got = 0;
  do {
    got = ::read(fd, &reason, sizeof(reason));
  } while (got < 0 && errno == EINTR);
  return got == sizeof(reason) ? reason : 0;
}

std::string hint_for(int reason) {
  switch (reason) {
    case ENOEXEC:
      return "A script needs a first line such as #!/bin/sh, a program must be built for this machine.";
    case ENOENT:
      return "The interpreter in its first line, or the loader it asks for, does not exist.";
    case E2BIG:
      return "Arguments and environment are too long.";
    default:
      return "";
  }
}

} // namespace

fs::path find_program(const std::string& name) {
  std::vector<fs::path> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.emplace_back(name);
  } else if (!name.empty()) {
    for (const std::string& folder : split(env::text("PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':')) {
      candidates.push_back(fs::path(folder.empty() ? "." : folder) / name);
    }
  }
  std::string refused;
  for (const fs::path& candidate : candidates) {
    std::error_code error;
    if (fs::is_regular_file(candidate, error)) {
      if (::access(candidate.c_str(), X_OK) == 0) {
        return candidate;
      }
      refused = concat(candidate.string(), " is not executable");
    } else if (fs::is_directory(candidate, error) && refused.empty() && candidates.size() == 1) {
      refused = concat(candidate.string(), " is a folder, not a program");
    }
  }
  if (!refused.empty()) {
    throw InputError("launch", refused, "Name a program; for a script: chmod +x.");
  }
  throw InputError("launch", concat("program not found: ", name),
                   name.find('/') == std::string::npos ? "It is not in PATH; a program in this folder is ./" + name
                                                       : std::string("Check the path; it starts from this folder."));
}

pid_t spawn(const SpawnRequest& request, const WaitForExec& wait) {
  Pipe failure = make_pipe();
  const ChildPlan plan = {
      request,    request.program.c_str(), pointers(request.arguments), pointers(request.environment),
      ::getpid(), failure.write.get()};
  const pid_t pid = ::fork();
  if (pid == 0) {
    become(plan);
  }
  if (pid < 0) {
    throw Error("launch", concat("cannot start another process: ", std::strerror(errno)),
                "Start fewer ranks, or raise the limits on processes and memory.");
  }
  failure.write.close();
  if (wait && !wait(failure.read.get())) {
    ::kill(pid, SIGKILL);
    return -1;
  }
  if (const int reason = wait_for_exec(failure.read.get()); reason != 0) {
    ::waitpid(pid, nullptr, 0);
    throw InputError("launch", concat(request.program.string(), " cannot be run: ", std::strerror(reason)),
                     hint_for(reason));
  }
  return pid;
}

std::string describe_end(int wait_status) {
  return WIFSIGNALED(wait_status) ? concat("was killed by ", signal_name(WTERMSIG(wait_status)))
                                  : concat("ended with exit code ", WEXITSTATUS(wait_status));
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string signal_name(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name == nullptr ? concat("signal ", number) : concat("SIG", name);
}

} // namespace trireme::launch
