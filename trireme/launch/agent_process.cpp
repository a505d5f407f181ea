#include <trireme/launch/agent_process.h>

#include <trireme/base/error.h>
#include <trireme/launch/environment.h>
#include <trireme/launch/process.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace trireme::launch {
namespace {

using std::chrono::milliseconds;

// Time from the end of the connection to the end of its process, to read its last output.
constexpr milliseconds kLastWords{300};
// An agent that was asked to end has no work left.
constexpr milliseconds kGoodBye{2000};

} // namespace

AgentProcess::AgentProcess(const std::vector<std::string>& command, const SignalWatch& signals)
    : program_(std::filesystem::path(command.front()).filename().string()),
      from_(make_pipe()),
      complaints_(make_pipe()),
      to_(make_pipe()) {
  set_nonblocking(from_.read.get());
  set_nonblocking(complaints_.read.get());
  SpawnRequest request;
  request.program = find_program(command.front());
  request.arguments = command;
  request.environment = own_environment();
  request.stdin_fd = to_.read.get();
  request.stdout_fd = from_.write.get();
  request.stderr_fd = complaints_.write.get();
  request.signal_mask = signals.mask_before();
  request.on_broken_pipe = signals.broken_pipe_before();
  pid_ = spawn(request);
  to_.read.close();
  from_.write.close();
  complaints_.write.close();
  orders_.emplace(to_.write.get());
}

AgentProcess::~AgentProcess() {
  to_.write.close();
  if (pid_ > 0 && !wait_for_end(kGoodBye)) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void AgentProcess::dismiss() {
  orders_->flush();
  to_.write.close();
}

void AgentProcess::add_to(std::vector<pollfd>& polled) const {
  for (const Descriptor* end : {&from_.read, &complaints_.read}) {
    if (*end) {
      polled.push_back({end->get(), POLLIN, 0});
    }
  }
  if (from_.read && orders_->pending()) {
    polled.push_back({orders_->fd(), POLLOUT, 0});
  }
}

void AgentProcess::serve(const std::vector<pollfd>& polled, const Listener& listener) {
  for (const pollfd& one : polled) {
    if (one.revents == 0) {
      continue;
    }
    if (from_.read && one.fd == from_.read.get()) {
      read_events(listener);
    } else if (complaints_.read && one.fd == complaints_.read.get()) {
      read_complaints(listener);
    } else if (from_.read && one.fd == orders_->fd()) {
      orders_->flush();
    }
  }
}

void AgentProcess::read_events(const Listener& listener) {
  char buffer[64 * 1024];
  ssize_t got = 0;
  while (from_.read && (got = ::read(from_.read.get(), buffer, sizeof(buffer))) > 0) {
    listener.arrived(std::string_view(buffer, static_cast<size_t>(got)));
  }
  if (from_.read && (got == 0 || (errno != EAGAIN && errno != EINTR))) {
    listener.ended();
  }
}

void AgentProcess::read_complaints(const Listener& listener) {
  char buffer[16 * 1024];
  const ssize_t got = ::read(complaints_.read.get(), buffer, sizeof(buffer));
  if (got > 0) {
    complaint_lines_.add(std::string_view(buffer, static_cast<size_t>(got)), [&](std::string_view line) {
      last_complaints_.add(line);
      listener.complained(line);
    });
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    complaints_.read.close();
  }
}

bool AgentProcess::wait_for_end(milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  pid_t ended = 0;
  while ((ended = ::waitpid(pid_, &wait_status_, WNOHANG)) == 0 && std::chrono::steady_clock::now() < deadline) {
    ::usleep(2000);
  }
  return ended != 0;
}

void AgentProcess::cut() {
  from_.read.close();
  if (pid_ > 0) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
}

std::string AgentProcess::last_words(const Listener& listener) {
  from_.read.close();
  const bool ended = wait_for_end(kLastWords);
  if (complaints_.read) {
    read_complaints(listener);
  }
  const std::string words = last_complaints_.last();
  pid_ = ended ? -1 : pid_;
  cut();
  return concat(program_, " ", ended ? describe_end(wait_status_) : "closed it", words.empty() ? "" : ": ", words);
}

} // namespace trireme::launch
