#include <trireme/launch/attempt.h>

#include <trireme/base/cores.h>
#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/launch/descendants.h>
#include <trireme/launch/environment.h>
#include <trireme/launch/process.h>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>

namespace trireme::launch {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

// A rank that refuses the user's input ends with this; so do most command lines.
constexpr int kInputError = 2;
// All ranks mostly meet the same bad input at the same time: rank 0 gets this long to say it in its own words.
constexpr milliseconds kRankZeroSpeaks{500};
// timeout(1) and some shells signal a process and then its whole group: the same request, not a second one.
constexpr milliseconds kSameRequest{300};
constexpr milliseconds kKillAgain{20};
// SIGKILL does not end a process that hangs in the kernel (a dead network disk).
constexpr milliseconds kKillPatience{10'000};

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

} // namespace

Attempt::Attempt(const Job& job, int number) : job_(job), number_(number), started_at_(Clock::now()) {}

Outcome Attempt::run() {
  try {
    start();
  } catch (...) {
    hurry_ = true;
    stop(SIGKILL);
    for (advance(); phase_ != Phase::over; advance()) {
      wait_for_events();
    }
    throw;
  }
  while (phase_ != Phase::over) {
    wait_for_events();
    advance();
  }
  for (Rank& rank : ranks_) {
    rank.output.finish();
  }
  Outcome outcome;
  outcome.told = told_;
  outcome.exit_code = told_ != 0 ? 128 + told_ : failure_ ? exit_code_of(ranks_[*failure_].wait_status) : 0;
  outcome.ran_seconds = duration<double>(ended_at_ - started_at_).count();
  outcome.stop_seconds = duration<double>(Clock::now() - ended_at_).count();
  return outcome;
}

void Attempt::start() {
  const LaunchOptions& options = job_.options;
  std::string heading = concat("started ", now_text());
  if (options.max_restarts > 0) {
    heading += concat(", attempt ", number_ + 1, " of ", options.max_restarts + 1);
  }
  for (int rank = 0; rank < options.ranks; ++rank) {
    const Shown shown = options.all_output ? Shown::with_prefix : rank == 0 ? Shown::as_it_is : Shown::not_at_all;
    ranks_.push_back({RankOutput(rank, job_.log_dir, heading, shown, job_.screen)});
  }
  const MeetingPoint meeting = open_meeting_point(options.ranks);
  for (int rank = 0; rank < options.ranks; ++rank) {
    start_rank(rank, meeting.port, rank == 0 ? meeting.socket.get() : -1);
  }
}

void Attempt::start_rank(int number, int port, int listen_fd) {
  const LaunchOptions& options = job_.options;
  Rank& rank = ranks_[static_cast<size_t>(number)];
  RankPlace place;
  place.rank = number;
  place.ranks = options.ranks;
  place.restarts = number_;
  place.max_restarts = options.max_restarts;
  place.port = port;
  place.run_id = job_.run_id;
  place.listen_fd = listen_fd;
  place.lifeline_fd = job_.lifeline_fd;
  place.terminal_columns = number == 0 && !options.all_output ? job_.screen.columns() : 0;
  place.usable_cores = trireme::usable_cores();

  SpawnRequest request;
  request.program = job_.program;
  request.arguments = options.command;
  request.environment = rank_environment(place, job_.environment, options.extra_env);
  const Descriptor nothing = open_null();
  request.stdin_fd = number == 0 ? STDIN_FILENO : nothing.get();
  request.stdout_fd = rank.output.stdout_fd();
  request.stderr_fd = rank.output.stderr_fd();
  request.keep = {job_.lifeline_fd};
  if (listen_fd >= 0) {
    request.keep.push_back(listen_fd);
  }
  request.guardian_fd = job_.guardian.fd();
  request.signal_mask = job_.signals.mask_before();
  request.on_broken_pipe = job_.signals.broken_pipe_before();
  rank.pid = spawn(request);
  rank.live = true;
  rank.output.close_write_ends();
  ++live_;
  children_left_ = true;
}

void Attempt::wait_for_events() {
  std::vector<pollfd> polled = {{job_.signals.fd(), POLLIN, 0}};
  for (Outlet* outlet : {&job_.screen.out(), &job_.screen.err()}) {
    if (outlet->pending()) {
      polled.push_back({outlet->fd(), POLLOUT, 0});
    }
  }
  const size_t first_pipe = polled.size();
  for (const Rank& rank : ranks_) {
    rank.output.add_to(polled);
  }
  int timeout = -1;
  const auto until = [&](Clock::time_point when) {
    return static_cast<int>(std::clamp(std::ceil(duration<double, std::milli>(when - Clock::now()).count()), 0.0, 1e9));
  };
  if (phase_ == Phase::running && failure_) {
    timeout = until(stop_at_);
  } else if (phase_ == Phase::stopping) {
    timeout = until(deadline_);
  } else if (phase_ == Phase::killing) {
    timeout = kKillAgain.count();
  }
  ::poll(polled.data(), polled.size(), timeout);

  for (size_t i = first_pipe; i < polled.size(); ++i) {
    if (polled[i].revents != 0) {
      for (Rank& rank : ranks_) {
        rank.output.read_from(polled[i].fd);
      }
    }
  }
  job_.screen.out().flush();
  job_.screen.err().flush();
  take_signals();
}

void Attempt::take_signals() {
  while (const std::optional<int> number = job_.signals.next()) {
    if (*number == SIGCHLD) {
      reap();
    } else if (*number == SIGUSR1 || *number == SIGUSR2) {
      for (const Rank& rank : ranks_) {
        if (rank.live) {
          ::kill(rank.pid, *number);
        }
      }
    } else if (told_ == 0) {
      told_ = *number;
      told_at_ = Clock::now();
    } else if (Clock::now() - told_at_ > kSameRequest) {
      hurry_ = true;
    }
  }
}

void Attempt::reap() {
  std::vector<size_t> ended;
  int wait_status = 0;
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].live && ranks_[i].pid == pid) {
        ranks_[i].live = false;
        ranks_[i].wait_status = wait_status;
        --live_;
        job_.guardian.forget(pid);
        ended.push_back(i);
      }
    }
  }
  children_left_ = pid == 0;
  note_ends(ended);
}

void Attempt::note_ends(const std::vector<size_t>& ended) {
  if (failure_ || phase_ != Phase::running) {
    return;
  }
  for (const size_t i : ended) {
    const int status = ranks_[i].wait_status;
    // Of several that ended since the last look, a killed one is the likelier cause, an exit code the consequence.
    if (status != 0 && (!failure_ || (WIFSIGNALED(status) && !WIFSIGNALED(ranks_[*failure_].wait_status)))) {
      failure_ = i;
    }
  }
  if (!failure_ || told_ != 0) {
    return;
  }
  ended_at_ = stop_at_ = Clock::now();
  if (exit_code_of(ranks_[*failure_].wait_status) != kInputError) {
    report(*failure_);
  } else if (!shown(*failure_) && ranks_[0].live) {
    stop_at_ += kRankZeroSpeaks;
  }
}

bool Attempt::shown(size_t number) const {
  return number == 0 || job_.options.all_output;
}

std::string Attempt::describe(size_t number) const {
  return concat("rank ", number, " ", describe_end(ranks_[number].wait_status));
}

void Attempt::report(size_t number) {
  RankOutput& output = ranks_[number].output;
  output.drain();
  job_.screen.say(concat(describe(number), " (pid ", ranks_[number].pid, ") ",
                         format_seconds(duration<double>(ended_at_ - started_at_).count()), " after start"));
  for (const std::string& line : output.last_lines().lines()) {
    job_.screen.say(concat("| ", line));
  }
  job_.screen.say(concat("all it wrote: ", output.log().string()));
}

void Attempt::report_input_error() {
  if (shown(*failure_) || (!ranks_[0].live && exit_code_of(ranks_[0].wait_status) == kInputError)) {
    return;  // the person has read it
  }
  RankOutput& output = ranks_[*failure_].output;
  output.drain();
  const std::string words = output.last_lines().last();
  job_.screen.say(words.empty() ? describe(*failure_) : concat(describe(*failure_), ": ", words));
}

void Attempt::advance() {
  const auto now = Clock::now();
  if (phase_ == Phase::running) {
    if (told_ != 0) {
      stop(told_ == SIGINT ? SIGINT : SIGTERM);
    } else if (live_ == 0 || (failure_ && (now >= stop_at_ || !ranks_[0].live))) {
      stop(SIGTERM);
    }
  }
  if (phase_ == Phase::stopping && children_left_) {
    if (live_ == 0 && !leftovers_told_) {
      end_leftovers();
    }
    if (hurry_ || now >= deadline_) {
      start_killing();
    }
  }
  if (phase_ == Phase::killing && children_left_) {
    kill_all();
    reap();
    if (now >= deadline_) {
      job_.screen.say("a process does not end although it was killed; it hangs in the kernel (see ps, state D)");
      phase_ = Phase::over;
    }
  }
  if (phase_ != Phase::running && !children_left_) {
    phase_ = Phase::over;
  }
}

void Attempt::stop(int signal) {
  phase_ = Phase::stopping;
  stop_signal_ = signal;
  const auto now = Clock::now();
  deadline_ = now + std::chrono::duration_cast<Clock::duration>(duration<double>(job_.options.grace_seconds));
  if (!failure_ || told_ != 0) {
    ended_at_ = now;
  } else if (exit_code_of(ranks_[*failure_].wait_status) == kInputError) {
    report_input_error();
  }
  for (const Rank& rank : ranks_) {
    if (rank.live) {
      ::kill(-rank.pid, signal);
      ::kill(-rank.pid, SIGCONT);  // a stopped process would never hear of it
      told_groups_.insert(rank.pid);
    }
  }
}

void Attempt::end_leftovers() {
  leftovers_told_ = true;
  for (const pid_t pid : descendants(::getpid(), job_.guardian.pid())) {
    if (told_groups_.count(::getpgid(pid)) == 0) {
      ::kill(pid, SIGTERM);
      ::kill(pid, SIGCONT);
    }
  }
}

void Attempt::start_killing() {
  phase_ = Phase::killing;
  deadline_ = Clock::now() + kKillPatience;
  for (size_t i = 0; i < ranks_.size() && !hurry_; ++i) {
    if (ranks_[i].live) {
      job_.screen.say(concat("rank ", i, " did not end within ", format_seconds(job_.options.grace_seconds), " of ",
                             signal_name(stop_signal_), " and was killed"));
    }
  }
}

void Attempt::kill_all() {
  for (const Rank& rank : ranks_) {
    if (rank.live) {
      ::kill(-rank.pid, SIGKILL);
    }
  }
  for (const pid_t pid : descendants(::getpid(), job_.guardian.pid())) {
    ::kill(pid, SIGKILL);
  }
}

} // namespace trireme::launch
