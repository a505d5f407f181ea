#include <trireme/launch/attempt.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/launch/process.h>

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

namespace trireme::launch {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

// timeout(1) and some shells signal a process and then its process group: the same request, not a second one.
constexpr milliseconds kSameRequest{300};
// A task that was asked to end may have much to save.
constexpr double kLastWork = 60;

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

/// The delay of the ranks' own warning of late ranks; nullopt if it is off.
std::optional<double> late_after() {
  const std::optional<std::string> text = env::text("TRIREME_WARN_AFTER");
  const double seconds = text ? std::strtod(text->c_str(), nullptr) : 60;
  return seconds > 0 ? std::optional(seconds) : std::nullopt;
}

} // namespace

Attempt::Attempt(const Job& job, int number, std::vector<Member> members, std::string address,
                 std::vector<std::string> command)
    : job_(job),
      number_(number),
      members_(std::move(members)),
      address_(std::move(address)),
      command_(std::move(command)),
      started_at_(Clock::now()),
      began_at_(duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()),
      lost_(members_.size(), false) {}

Attempt::Attempt(const Job& job, int number, Member member, std::string address, std::vector<std::string> command,
                 Task task)
    : Attempt(job, number, std::vector{std::move(member)}, std::move(address), std::move(command)) {
  task_ = std::move(task);
  released_ = false;
}

Outcome Attempt::run() {
  try {
    while (!over()) {
      advance();
      if (!over()) {
        wait_for_events(job_, {this});
      }
    }
  } catch (...) {
    kill();
    throw;
  }
  return finish();
}

void Attempt::release(const Variables& variables) {
  task_->variables.insert(task_->variables.end(), variables.begin(), variables.end());
  released_ = true;
}

void Attempt::ask_to_end() {
  asked_to_end_ = received_signal_ == 0;
  take_signal(SIGTERM);
}

void Attempt::kill() {
  hurry_ = true;
  phase_ = Phase::stopping;
  while (anything_left()) {
    for (const Member& member : members_) {
      member.place.kill();
      try {
        member.place.advance();
      } catch (const Error&) {
        // several hosts refuse for the same reason; the first reason was logged
      }
    }
    if (anything_left()) {
      wait_for_events(job_, {this});
    }
  }
}

Outcome Attempt::finish() {
  for (Rank& rank : ranks_) {
    rank.output.finish();
  }
  return outcome();
}

Outcome Attempt::outcome() const {
  Outcome outcome;
  outcome.received_signal = received_signal_;
  outcome.not_started = !started_;
  outcome.cause = describe_failure();
  if (received_signal_ != 0) {
    const auto ended_by_signal = [this](const Rank& rank) {
      return !rank.live && WIFSIGNALED(rank.end.wait_status) && WTERMSIG(rank.end.wait_status) == stop_signal_;
    };
    const bool all_done =
        started_ && std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
          return !rank.live && (rank.end.wait_status == 0 || (asked_to_end_ && ended_by_signal(rank)));
        });
    // Ranks answer the signal before they connect, and no step is done before all have connected.
    const bool no_step = job_.options.progress && !stepped();
    outcome.not_begun = preempting() && !failure_ &&
                        (!started_ || (no_step && std::any_of(ranks_.begin(), ranks_.end(), ended_by_signal)));
    const bool had_nothing_to_do = asked_to_end_ && !started_;
    outcome.exit_code = outcome.not_begun || had_nothing_to_do || ((preempting() || asked_to_end_) && all_done)
                            ? 0
                            : 128 + received_signal_;
  } else if (failure_) {
    outcome.exit_code = failure_->rank ? exit_code_of(ranks_[*failure_->rank].end.wait_status) : 1;
  }
  outcome.ran_seconds = duration<double>(ended_at_ - started_at_).count();
  outcome.stop_seconds = duration<double>(Clock::now() - ended_at_).count();
  return outcome;
}

// Whether the ranks of this attempt have reported a step.
bool Attempt::stepped() const {
  const auto at = job_.options.progress ? job_.options.progress() : std::nullopt;
  return at && at->stepped_at > began_at_;
}

void Attempt::assemble() {
  for (const Member& member : members_) {
    if (member.place.state() == Place::State::connecting) {
      return;
    }
  }
  int ranks = 0;
  for (const Member& member : members_) {
    ranks += member.ranks;
  }
  if (!listening_) {
    listening_ = true;
    if (!task_ || !members_.front().place.ports()) {
      members_.front().place.listen(address_, ranks);
    }
  }
  if (members_.front().place.ports() && released_ && Clock::now() >= not_before_) {
    start_all();
  }
}

void Attempt::start_all() {
  const LaunchOptions& options = job_.options;
  std::string heading = concat("started ", now_text());
  if (task_) {
    heading += number_ > 0 ? concat(", restart ", number_) : "";
  } else if (options.max_restarts > 0) {
    heading += concat(", attempt ", number_ + 1, " of ", options.max_restarts + 1);
  }
  for (size_t member = 0; member < members_.size(); ++member) {
    for (int i = 0; i < members_[member].ranks; ++i) {
      const auto rank = static_cast<int>(ranks_.size());
      const Shown shown = options.all_output ? Shown::with_prefix : rank == 0 ? Shown::as_it_is : Shown::not_at_all;
      ranks_.push_back({task_ ? RankOutput(task_->number, job_.log_dir, heading, task_->shown, job_.screen, task_->kind)
                              : RankOutput(rank, job_.log_dir, heading, shown, job_.screen),
                        member,
                        false,
                        {}});
    }
  }
  Share share;
  share.ranks = static_cast<int>(ranks_.size());
  share.nodes = static_cast<int>(members_.size());
  share.restarts = number_;
  share.max_restarts = options.max_restarts;
  share.address = address_;
  share.ports = members_.front().place.ports().value();
  share.command = command_;
  if (task_) {
    share.variables = task_->variables;
    share.neighbours = task_->neighbours;
    share.keeps_socket = true;
  }
  phase_ = Phase::running;
  started_ = true;
  for (const Member& member : members_) {
    share.local_ranks = member.ranks;
    share.terminal_columns = share.first_rank == 0 && shown(0) && !options.all_output ? job_.screen.columns() : 0;
    for (int i = 0; i < member.ranks; ++i) {
      ranks_[static_cast<size_t>(share.first_rank + i)].live = true;
      ++live_;
    }
    member.place.start(share, *this);
    share.first_rank += member.ranks;
    ++share.node;
  }
  job_.account.started();
}

void Attempt::add_to(std::vector<pollfd>& polled) const {
  for (const Member& member : members_) {
    member.place.add_to(polled);
  }
}

void Attempt::serve(const std::vector<pollfd>& polled) {
  for (const Member& member : members_) {
    member.place.serve(polled);
  }
}

std::optional<Clock::time_point> Attempt::wake() const {
  auto wake = Clock::time_point::max();
  for (const Member& member : members_) {
    wake = std::min(wake, member.place.wake().value_or(wake));
  }
  if (phase_ == Phase::assembling && not_before_ > Clock::now()) {
    wake = std::min(wake, not_before_);
  } else if (phase_ == Phase::running && failure_) {
    wake = std::min(wake, stop_at_);
  } else if (phase_ == Phase::stopping && !hurry_) {
    wake = std::min(wake, deadline_);
  }
  wake = std::min(wake, late_ends().value_or(wake));
  return wake == Clock::time_point::max() ? std::nullopt : std::optional(wake);
}

void Attempt::take_signal(int number) {
  if (number == SIGUSR2 || (number == SIGUSR1 && !job_.options.preemptible)) {
    for (const Member& member : members_) {
      member.place.signal(number);
    }
  } else if (received_signal_ == 0) {
    received_signal_ = number;
    received_at_ = Clock::now();
  } else if (Clock::now() - received_at_ > kSameRequest) {
    hurry_ = true;
  }
}

bool Attempt::preempting() const {
  return job_.options.preemptible && received_signal_ != 0 && received_signal_ != SIGINT;
}

void Attempt::output(int rank, int stream, std::string_view bytes) {
  ranks_.at(static_cast<size_t>(rank)).output.take(stream, bytes);
}

bool Attempt::wants(int rank, int stream) const {
  return ranks_.at(static_cast<size_t>(rank)).output.wants(stream);
}

void Attempt::ended(int rank, const RankEnd& end) {
  Rank& it = ranks_.at(static_cast<size_t>(rank));
  if (it.live) {
    it.live = false;
    it.end = end;
    it.output.end_lines();
    --live_;
    ended_.push_back(static_cast<size_t>(rank));
  }
}

void Attempt::say(std::string_view words) {
  job_.screen.say(words);
}

std::optional<Clock::time_point> Attempt::late_ends() const {
  if (phase_ != Phase::running || failure_ || live_ == 0 || !first_end_ || late_ends_said_) {
    return std::nullopt;
  }
  const std::optional<double> after = late_after();
  return after ? std::optional(*first_end_ +
                               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*after)))
               : std::nullopt;
}

void Attempt::say_late_ends() {
  late_ends_said_ = true;
  const double seconds = std::chrono::duration<double>(Clock::now() - *first_end_).count();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].live) {
      job_.screen.say(concat(name(i), " still runs, ", format_seconds(seconds),
                             " after the first one has ended; if it is ",
                             "stopped, kill -CONT continues it; all it wrote: ", ranks_[i].output.log().string()));
    }
  }
}

bool Attempt::anything_left() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.place.state() == Place::State::running; });
}

void Attempt::advance() {
  for (const Member& member : members_) {
    member.place.advance();
  }
  note_ends();
  note_lost_places();
  if (const std::string words = job_.account.look(); !words.empty()) {
    job_.screen.say(words);
  }
  const auto now = Clock::now();
  if (now >= late_ends().value_or(Clock::time_point::max())) {
    say_late_ends();
  }
  if (phase_ == Phase::assembling && !failure_ && received_signal_ == 0) {
    assemble();
  }
  if (phase_ == Phase::assembling && (failure_ || received_signal_ != 0)) {
    stop();
  }
  if (phase_ == Phase::running &&
      (received_signal_ != 0 || live_ == 0 || (failure_ && (now >= stop_at_ || !others_may_explain())))) {
    stop();
  }
  if (phase_ == Phase::stopping) {
    if (live_ == 0 && !leftovers_reported_) { // report the output of their orphans too
      leftovers_reported_ = true;
      for (const Member& member : members_) {
        member.place.stop(SIGTERM);
      }
    }
    if (anything_left() && (hurry_ || now >= deadline_)) {
      start_killing();
    }
  }
  if (phase_ == Phase::stopping || phase_ == Phase::killing) {
    for (const Member& member : members_) {
      member.place.advance();
    }
    phase_ = anything_left() ? phase_ : Phase::over;
  }
}

void Attempt::stop() {
  phase_ = Phase::stopping;
  const LaunchOptions& options = job_.options;
  // Ranks that answer SIGTERM by saving would wait for the one that failed.
  const bool interrupt = received_signal_ == SIGINT || (received_signal_ == 0 && failure_ && options.preemptible);
  stop_signal_ = interrupt ? SIGINT : received_signal_ == SIGUSR1 ? SIGUSR1 : SIGTERM;
  grace_ = received_signal_ == 0 ? std::min(options.grace_seconds, kFailureGrace) : options.grace_seconds;
  grace_ = asked_to_end_ ? std::max(grace_, kLastWork) : grace_;
  deadline_ = in_seconds(grace_);
  if (!failure_ || received_signal_ != 0) {
    ended_at_ = Clock::now();
  }
  report_failure();
  for (const Member& member : members_) {
    if (preempting()) { // their children continue until the ranks have saved
      member.place.signal(stop_signal_);
    } else {
      member.place.stop(stop_signal_);
    }
  }
}

void Attempt::start_killing() {
  phase_ = Phase::killing;
  for (size_t i = 0; i < ranks_.size() && !hurry_; ++i) {
    if (ranks_[i].live) {
      job_.screen.say(concat(name(i), " did not end within ", format_seconds(grace_), " of ", signal_name(stop_signal_),
                             " and was killed"));
    }
  }
  for (const Member& member : members_) {
    member.place.kill();
  }
}

} // namespace trireme::launch
