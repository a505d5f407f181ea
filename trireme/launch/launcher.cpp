#include <trireme/launch/launcher.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/launch/attempt.h>
#include <trireme/launch/descendants.h>
#include <trireme/launch/environment.h>
#include <trireme/launch/process.h>

#include <poll.h>

#include <cstdlib>
#include <cstring>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

void check(const LaunchOptions& options) {
  if (options.ranks < 1) {
    throw InputError("launch", concat(options.ranks, " ranks cannot be started"), "Ask for at least 1.");
  }
  if (options.command.empty()) {
    throw InputError("launch", "no program to start", "Name it after --, as in: trireme launch -n 2 -- ./my_training");
  }
  if (options.max_restarts < 0) {
    throw InputError("launch", concat("max_restarts is ", options.max_restarts), "0 is the least: do not start again.");
  }
  if (!(options.grace_seconds >= 0 && options.grace_seconds <= 1e6)) {
    throw InputError("launch", concat("grace_seconds is ", options.grace_seconds), "Give seconds from 0 to 1000000.");
  }
  for (const auto& [name, value] : options.extra_env) {
    if (name.empty() || name.find('=') != std::string::npos) {
      throw InputError("launch", concat("\"", name, "\" is no name for an environment variable"));
    }
  }
}

fs::path open_log_dir(const LaunchOptions& options) {
  if (!options.log_dir.empty()) {
    std::error_code error;
    fs::create_directories(options.log_dir, error);
    if (error) {
      throw InputError("launch", concat("cannot make the log folder ", options.log_dir.string(), ": ", error.message()),
                       "Name another log folder.");
    }
    return options.log_dir;
  }
  std::error_code error;
  fs::path folder = fs::temp_directory_path(error);
  std::string path = ((error ? fs::path("/tmp") : folder) / "trireme-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) {
    throw InputError("launch", concat("cannot make a log folder in ", fs::path(path).parent_path().string(), ": ", std::strerror(errno)),
                     "Name a log folder, or set TMPDIR to a folder with room.");
  }
  return path;
}

// Waits for the reader of our output, as any program would; a signal gives up.
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

int run_attempts(const Job& job) {
  const int attempts = job.options.max_restarts + 1;
  for (int number = 0;; ++number) {
    const Outcome outcome = Attempt(job, number).run();
    const bool final = outcome.exit_code == 0 || outcome.exit_code == 2 || outcome.told != 0;
    if (final || number + 1 == attempts) {
      if (!final && attempts > 1) {
        job.screen.say(concat("giving up after attempt ", attempts, " of ", attempts));
      }
      return outcome.exit_code;
    }
    job.screen.say(concat("starting all ranks again: attempt ", number + 2, " of ", attempts, " (the last one ran ",
                          format_seconds(outcome.ran_seconds), ", stopping it took ", format_seconds(outcome.stop_seconds), ")"));
  }
}

} // namespace

int run(const LaunchOptions& options) {
  check(options);
  fill_standard_descriptors();
  const fs::path program = find_program(options.command.front());
  const fs::path log_dir = open_log_dir(options);
  SignalWatch signals;
  const OrphanAdoption adoption;
  Guardian guardian(options.ranks);
  const Pipe lifeline = make_pipe();
  Screen screen;
  const bool all_shown = options.ranks == 1 || options.all_output;
  if (options.log_dir.empty() && !all_shown) {
    screen.say(concat("output of the other ranks: ", (log_dir / "rank*.log").string()));
  }
  const Job job = {options, program, log_dir, own_environment(), random_id(), lifeline.read.get(), signals, guardian, screen};
  int exit_code = 0;
  try {
    exit_code = run_attempts(job);
  } catch (...) {
    hand_over_rest(screen, signals);
    throw;
  }
  hand_over_rest(screen, signals);
  if (options.log_dir.empty() && all_shown && exit_code == 0) {
    std::error_code kept;
    fs::remove_all(log_dir, kept);
  }
  return exit_code;
}

} // namespace trireme::launch
