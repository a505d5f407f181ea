#include <trireme/launch/launcher.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/units.h>
#include <trireme/launch/attempts.h>
#include <trireme/launch/environment.h>
#include <trireme/launch/host_pool.h>
#include <trireme/launch/local_place.h>
#include <trireme/launch/process.h>
#include <trireme/launch/tasks.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

void check(const LaunchOptions& options) {
  if (options.ranks < (options.hosts.empty() ? 1 : 0)) {
    throw InputError("launch", concat(options.ranks, " ranks cannot be started"), "Ask for at least 1.");
  }
  if (options.command.empty()) {
    throw InputError("launch", "no program to start", "Name it after --, as in: trireme launch -n 2 -- ./my_training");
  }
  if (options.servers < 0 || (options.servers > 0 && options.ranks < 1)) {
    throw InputError("launch", concat(options.ranks, " workers and ", options.servers, " servers cannot be started"),
                     "Ask for at least 1 worker, with -n.");
  }
  if (options.servers > 0 && (options.min_nodes > 0 || options.max_nodes > 0)) {
    throw InputError("launch", "a job with servers does not change its hosts",
                     "Leave --min-nodes and --max-nodes out: it goes on without the workers of a lost host.");
  }
  if (options.max_restarts < 0) {
    throw InputError("launch", concat("max_restarts is ", options.max_restarts), "Give 0 (no restarts) or more.");
  }
  if (!(options.grace_seconds >= 0 && options.grace_seconds <= 1e6)) {
    throw InputError("launch", concat("grace_seconds is ", options.grace_seconds), "Give seconds from 0 to 1000000.");
  }
  if (!(options.heartbeat_timeout >= 1 && options.heartbeat_timeout <= 1e6)) {
    throw InputError("launch", concat("the heartbeat time-out is ", options.heartbeat_timeout, " s"),
                     "Give seconds from 1 to 1000000.");
  }
  const int hosts = std::max(1, static_cast<int>(options.hosts.size()));
  if (options.min_nodes < 0 || options.max_nodes < 0 || options.min_nodes > hosts ||
      (options.max_nodes > 0 && options.min_nodes > options.max_nodes)) {
    throw InputError(
        "launch",
        concat("the job cannot run on ", options.min_nodes, " to ", options.max_nodes == 0 ? hosts : options.max_nodes,
               " of ", hosts, hosts == 1 ? " host" : " hosts"),
        "--min-nodes must not be above --max-nodes, nor above the number of hosts in --hostfile.");
  }
  for (const auto& [name, value] : options.extra_env) {
    if (name.empty() || name.find('=') != std::string::npos) {
      throw InputError("launch", concat("\"", name, "\" is not a valid name of an environment variable"));
    }
  }
}

fs::path open_log_dir(const LaunchOptions& options) {
  if (!options.log_dir.empty()) {
    std::error_code error;
    make_private_folders(options.log_dir, error);
    if (error) {
      throw InputError("launch", concat("cannot make the log folder ", options.log_dir.string(), ": ", error.message()),
                       "Name another log folder.");
    }
    return options.log_dir;
  }
  return make_scratch_folder("trireme", {}, "Name a log folder, or set TMPDIR to a folder with room.");
}

// Whether the logs contain output that was not shown.
bool holds_more(const fs::path& log_dir, bool all_shown) {
  std::error_code error;
  for (fs::directory_iterator log(log_dir, error); !all_shown && !error && log != fs::directory_iterator();
       log.increment(error)) {
    const std::string name = log->path().filename().string();
    if (name != "rank0.log" && name != "worker0.log" && log->file_size(error) > 0) {
      return true;
    }
  }
  return bool(error);
}

// Waits until our output is written, as any program would; a signal ends the wait.
void hand_over_rest(Screen& screen, SignalWatch& signals) {
  while (screen.pending()) {
    std::vector<pollfd> polled = {{signals.fd(), POLLIN, 0}};
    for (const Outlet* outlet : {&screen.out(), &screen.err()}) {
      if (outlet->pending()) {
        polled.push_back({outlet->fd(), POLLOUT, 0});
      }
    }
    ::poll(polled.data(), polled.size(), -1);
    screen.out().flush();
    screen.err().flush();
    while (const std::optional<int> number = signals.next()) {
      if (*number == SIGINT || *number == SIGTERM || *number == SIGHUP) {
        return;
      }
    }
  }
}

// A job on this machine has one place, which cannot be lost; with servers one a task.
class Places {
 public:
  Places(const LaunchOptions& options, SignalWatch& signals, Screen& screen) : options_(options) {
    const std::string run_id = options.run_id.empty() ? random_id() : options.run_id;
    const std::string secret = random_secret();
    const int tasks = options.servers > 0 ? options.ranks + options.servers : 1;
    if (options.hosts.empty()) {
      for (int i = 0; i < tasks; ++i) {
        PlaceSetup setup;
        setup.run_id = run_id;
        setup.secret = secret;
        setup.extra_env = options.extra_env;
        setup.stdin_fd = i == 0 ? STDIN_FILENO : -1;
        here_.push_back(std::make_unique<LocalPlace>(std::move(setup), signals));
      }
    } else {
      if (options.servers > 0) {
        options_.hosts = hosts_of_tasks(options.hosts, options.ranks, options.servers);
        options_.ranks = tasks;
        options_.arrange = nullptr;
      }
      pool_.emplace(options_, run_id, secret, signals, screen);
    }
  }

  HostPool* pool() { return pool_ ? &*pool_ : nullptr; }
  std::vector<Member> choose() {
    if (pool_) {
      return pool_->choose();
    }
    std::vector<Member> members;
    for (const auto& place : here_) {
      members.push_back({"", *place, here_.size() == 1 ? options_.ranks : 1});
    }
    return members;
  }
  const std::string& address() const { return pool_ ? pool_->address() : loopback_; }
  /// Address of each task.
  std::vector<std::string> addresses() const {
    std::vector<std::string> all;
    for (size_t i = 0; i < here_.size(); ++i) {
      all.push_back(loopback_);
    }
    for (const Host& host : options_.hosts) {
      all.push_back(host.address);
    }
    return all;
  }
  const std::vector<std::string>& command() const { return pool_ ? pool_->arrangement().command : options_.command; }

 private:
  const std::string loopback_ = "127.0.0.1";
  LaunchOptions options_;
  std::vector<std::unique_ptr<LocalPlace>> here_;
  std::optional<HostPool> pool_;
};

} // namespace

JobReport run_job(const LaunchOptions& options) {
  SignalWatch signals;
  return run_job(options, signals);
}

JobReport run_job(const LaunchOptions& options, SignalWatch& signals) {
  check(options);
  fill_standard_descriptors();
  if (options.hosts.empty()) {
    find_program(options.command.front()); // fails before anything is created
  }
  const fs::path log_dir = open_log_dir(options);
  Screen screen;
  Places places(options, signals, screen);
  const bool all_shown = (options.hosts.empty() && options.ranks == 1 && options.servers == 0) || options.all_output;
  if (options.log_dir.empty() && !all_shown) {
    screen.say(concat("output of the other ", options.servers > 0 ? "tasks: " : "ranks: ",
                      (log_dir / (options.servers > 0 ? "*.log" : "rank*.log")).string()));
  }
  RestartAccount account(options.progress);
  const Job job = {options, log_dir, signals, screen, account};
  Outcome outcome;
  try {
    if (options.servers > 0) {
      outcome = run_tasks(job, places.choose(), places.addresses());
    } else {
      const auto next_start = [&] {
        std::vector<Member> members = places.choose();
        return Start{std::move(members), places.address(), places.command()};
      };
      outcome = run_attempts(job, next_start, places.pool());
    }
  } catch (...) {
    hand_over_rest(screen, signals);
    throw;
  }
  if (const std::string summary = account.finish(); !summary.empty()) {
    screen.say(summary);
  }
  hand_over_rest(screen, signals);
  if (options.log_dir.empty() && outcome.exit_code == 0 && !holds_more(log_dir, all_shown)) {
    std::error_code kept;
    fs::remove_all(log_dir, kept);
  }
  return {outcome.exit_code,  outcome.received_signal, outcome.not_begun,
          account.restarts(), account.total_seconds(), account.ettr()};
}

int run(const LaunchOptions& options) {
  return run_job(options).exit_code;
}

} // namespace trireme::launch
