#include "tests/support/run_ranks.h"

#include <trireme/base/error.h>

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace trireme::test {
namespace {

using Clock = std::chrono::steady_clock;

/// A listening socket on a free port of the loopback interface.
int open_meeting_socket(int& port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (descriptor < 0 || bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(descriptor, 128) != 0 || getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw Error("test", concat("cannot listen on the loopback interface: ", std::strerror(errno), "."));
  }
  port = ntohs(address.sin_port);
  return descriptor;
}

void set_environment(int rank, int world_size, int hosts, int port, int listen_fd) {
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(world_size));
  const int per_host = world_size / hosts;
  set("LOCAL_RANK", std::to_string(rank % per_host));
  set("LOCAL_WORLD_SIZE", std::to_string(per_host));
  if (hosts > 1) {
    set("TRIREME_HOST", concat("host", rank / per_host));
  }
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  if (rank == 0) {
    set("TRIREME_LISTEN_FD", std::to_string(listen_fd));
  } else {
    unsetenv("TRIREME_LISTEN_FD");
    close(listen_fd);
  }
}

/// The texts of all failed expectations of this process since it was forked.
std::string failed_expectations(int parts_before) {
  const auto* result = testing::UnitTest::GetInstance()->current_test_info()->result();
  std::string text;
  for (int index = parts_before; index < result->total_part_count(); ++index) {
    const auto& part = result->GetTestPartResult(index);
    if (part.failed()) {
      text += concat(text.empty() ? "" : " | ", part.file_name() == nullptr ? "?" : part.file_name(), ":",
                     part.line_number(), ": ", part.message());
    }
  }
  return text;
}

/// Exit status of a rank whose body came to its end; exit(0) in the middle of it is a failure.
constexpr int kDone = 78;

/// Runs in the child; writes what went wrong to `report` and never returns.
[[noreturn]] void be_rank(int rank, const std::function<void(int)>& body, int report, int parts_before) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string complaint;
  try {
    body(rank);
  } catch (const std::exception& error) {
    complaint = error.what();
  } catch (...) {
    complaint = "an exception of unknown type";
  }
  const std::string failures = failed_expectations(parts_before);
  if (!failures.empty()) {
    complaint += concat(complaint.empty() ? "" : " | ", failures);
  }
  std::fflush(nullptr);
  size_t written = 0;
  while (written < complaint.size()) {
    const ssize_t count = write(report, complaint.data() + written, complaint.size() - written);
    if (count <= 0) {
      break;
    }
    written += static_cast<size_t>(count);
  }
  _exit(complaint.empty() ? kDone : 1);
}

struct Child {
  pid_t process = 0;
  int report = -1;
  std::string complaint;
  bool open = true;
  bool reaped = false;
  bool late = false;
  int status = 0;
};

/// Reads the reports until all are closed or the deadline has passed; collects exit states.
void watch(std::vector<Child>& children, Clock::time_point deadline) {
  while (std::any_of(children.begin(), children.end(), [](const Child& child) { return !child.reaped; })) {
    if (Clock::now() >= deadline) {
      for (auto& child : children) {
        if (!child.reaped) {
          child.late = true;
          kill(child.process, SIGKILL);
        }
      }
      deadline = Clock::time_point::max();
    }
    std::vector<pollfd> waiting;
    for (auto& child : children) {
      if (child.open) {
        waiting.push_back({child.report, POLLIN, 0});
      }
    }
    poll(waiting.data(), waiting.size(), 10);
    for (auto& child : children) {
      char buffer[4096];
      ssize_t count = 0;
      while (child.open && (count = read(child.report, buffer, sizeof(buffer))) > 0) {
        child.complaint.append(buffer, static_cast<size_t>(count));
      }
      child.open = child.open && count < 0;
      if (!child.reaped && waitpid(child.process, &child.status, WNOHANG) == child.process) {
        child.reaped = true;
      }
    }
    if (waiting.empty()) {
      usleep(1000);
    }
  }
}

std::string line_of(int rank, Child& child, const RunOptions& options) {
  // What was written between the last read and the end.
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(child.report, buffer, sizeof(buffer))) > 0) {
    child.complaint.append(buffer, static_cast<size_t>(count));
  }
  std::replace(child.complaint.begin(), child.complaint.end(), '\n', ' ');
  if (child.late) {
    return concat("rank ", rank, ": still running after ", options.deadline.count(), " ms, killed");
  }
  if (WIFSIGNALED(child.status)) {
    return concat("rank ", rank, ": ended by signal ", WTERMSIG(child.status), " (", strsignal(WTERMSIG(child.status)),
                  ")");
  }
  if (WEXITSTATUS(child.status) != kDone || !child.complaint.empty()) {
    return concat("rank ", rank, ": ",
                  child.complaint.empty() ? concat("exit code ", WEXITSTATUS(child.status)) : child.complaint);
  }
  return "";
}

} // namespace

std::vector<std::string> run_processes(int world_size, const std::function<void(int)>& body,
                                       const RunOptions& options) {
  int port = 0;
  const int listen_fd = open_meeting_socket(port);
  const int parts_before = testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
  std::fflush(nullptr);
  std::vector<Child> children(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0) {
      throw Error("test", "cannot make a pipe.");
    }
    children[rank].process = fork();
    if (children[rank].process == 0) {
      for (int other = 0; other < rank; ++other) {
        close(children[other].report);
      }
      close(report[0]);
      set_environment(rank, world_size, options.hosts, port, listen_fd);
      if (!options.backend.empty()) {
        setenv("TRIREME_BACKEND", options.backend.c_str(), 1);
      }
      be_rank(rank, body, report[1], parts_before);
    }
    close(report[1]);
    fcntl(report[0], F_SETFL, O_NONBLOCK);
    children[rank].report = report[0];
  }
  close(listen_fd);
  watch(children, Clock::now() + options.deadline);

  std::vector<std::string> lines;
  for (int rank = 0; rank < world_size; ++rank) {
    const std::string line = line_of(rank, children[rank], options);
    if (!line.empty()) {
      lines.push_back(line);
    }
    close(children[rank].report);
  }
  return lines;
}

std::vector<std::string> run_ranks(int world_size, const std::function<void(comm::World&)>& body,
                                   const RunOptions& options) {
  return run_processes(
      world_size,
      [&](int) {
        comm::WorldOptions world_options;
        world_options.timeout = options.timeout;
        comm::World world = comm::World::connect(world_options);
        body(world);
      },
      options);
}

void on_ranks(int world_size, const std::function<void(comm::World&)>& body, const RunOptions& options,
              std::source_location caller) {
  for (const std::string& line : run_ranks(world_size, body, options)) {
    ADD_FAILURE_AT(caller.file_name(), static_cast<int>(caller.line())) << line;
  }
}

} // namespace trireme::test
