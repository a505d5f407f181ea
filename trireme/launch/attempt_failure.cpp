// Finds the cause among the ends of ranks and hosts, and reports it to the user.
#include <trireme/launch/attempt.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/launch/exit_codes.h>
#include <trireme/launch/process.h>

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

namespace trireme::launch {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

// All ranks usually find the same bad input at once: rank 0 gets this long to report it.
constexpr milliseconds kRankZeroSpeaks{500};
// A rank whose error ends the others may end after them: it leaves its groups, then its threads and memory end, perhaps
// with a core dump.
constexpr milliseconds kBlamedEnds{5000};

} // namespace

void Attempt::note_ends() {
  const std::vector<size_t> ended = std::exchange(ended_, {});
  if (phase_ == Phase::stopping && preempting()) {
    const bool failed =
        std::any_of(ended.begin(), ended.end(), [this](size_t i) { return ranks_[i].end.wait_status != 0; });
    if (failed) { // without it the others cannot save
      deadline_ = std::min(deadline_, in_seconds(std::min(grace_, kFailureGrace)));
    }
  }
  if (failure_ || phase_ != Phase::running) {
    return;
  }
  for (const size_t i : ended) {
    const int status = ranks_[i].end.wait_status;
    first_end_ = status == 0 && !first_end_ ? Clock::now() : first_end_;
    // If several ended since the last check, a killed one is likelier the cause than one with an exit code.
    if (status != 0 && (!failure_ || (WIFSIGNALED(status) && !WIFSIGNALED(ranks_[*failure_->rank].end.wait_status)))) {
      failure_ = Failure{i, ranks_[i].member};
    }
  }
  if (!failure_ || received_signal_ != 0) {
    return;
  }
  report_due_ = true;
  ended_at_ = Clock::now();
  stop_at_ = ended_at_ + (wrong_input(*failure_->rank) ? kRankZeroSpeaks : kBlamedEnds);
}

// A killed rank reports nothing; abort() follows an uncaught exception.
bool Attempt::says_why(size_t number) const {
  const int status = ranks_[number].end.wait_status;
  return !WIFSIGNALED(status) || WTERMSIG(status) == SIGABRT;
}

bool Attempt::wrong_input(size_t number) const {
  return exit_code_of(ranks_[number].end.wait_status) == kWrongInput;
}

Blame Attempt::blame_of(size_t number) const {
  return !says_why(number) ? Blame()
                           : blame_in(ranks_[number].output.last_lines().lines(), static_cast<int>(number),
                                      static_cast<int>(ranks_.size()));
}

// Those ranks that this one's error blames and that have failed or, if `living`, still run.
std::vector<size_t> Attempt::blamed_by(size_t number, bool living) const {
  std::vector<size_t> found;
  const Blame blame = blame_of(number);
  for (size_t i = 0; i < ranks_.size() && blame.others; ++i) {
    const bool meant = i != number && (blame.ranks.empty() ||
                                       std::count(blame.ranks.begin(), blame.ranks.end(), static_cast<int>(i)) > 0);
    if (meant && (living ? ranks_[i].live : !ranks_[i].live && ranks_[i].end.wait_status != 0)) {
      found.push_back(i);
    }
  }
  return found;
}

// Follows the errors from the rank that failed first to the one that it blames, and so on.
size_t Attempt::culprit() const {
  std::vector<size_t> way = {*failure_->rank};
  while (true) {
    std::vector<size_t> next = blamed_by(way.back(), false);
    const auto first = std::find_first_of(way.begin(), way.end(), next.begin(), next.end());
    std::erase_if(next, [&](size_t i) { return std::find(way.begin(), way.end(), i) != way.end(); });
    if (wrong_input(way.back())) {
      return way.back();
    }
    if (next.empty()) { // in a circle, the later ones failed because the first one gave up
      return first == way.end() ? way.back() : *first;
    }
    // Among several, prefer one that was killed, then one that blames no other.
    const auto likelihood = [this](size_t i) { return !says_why(i) ? 2 : blame_of(i).others ? 0 : 1; };
    way.push_back(
        *std::max_element(next.begin(), next.end(), [&](size_t a, size_t b) { return likelihood(a) < likelihood(b); }));
  }
}

// Whether a rank that still runs may explain the failure.
bool Attempt::others_may_explain() const {
  if (!failure_->rank || !report_due_) {
    return false;
  }
  if (wrong_input(*failure_->rank)) {
    return !shown(*failure_->rank) && ranks_[0].live;
  }
  return !blamed_by(culprit(), true).empty();
}

void Attempt::note_lost_places() {
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    if (lost_[i] || member.place.state() != Place::State::lost) {
      continue;
    }
    lost_[i] = true;
    std::vector<size_t> there;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].member == i) {
        there.push_back(rank);
        live_ -= ranks_[rank].live ? 1 : 0;
        ranks_[rank].live = false;
      }
    }
    const bool of_ours = phase_ == Phase::assembling || phase_ == Phase::running;
    std::string ranks;
    if (task_) {
      ranks = concat(" (", name(0), ")");
    } else if (!there.empty()) {
      ranks = there.size() == 1 ? concat(" (rank ", there.front(), ")")
                                : concat(" (ranks ", there.front(), " to ", there.back(), ")");
    }
    if (received_signal_ == 0) {
      job_.screen.say(concat("host ", member.name, ranks, " is lost: ", member.place.why_lost()));
    }
    const auto blamed_there = [&] {
      const Blame blame = blame_of(culprit());
      const bool named = std::any_of(blame.ranks.begin(), blame.ranks.end(),
                                     [&](int rank) { return ranks_[static_cast<size_t>(rank)].member == i; });
      return named || (blame.others && blame.ranks.empty());
    };
    if (of_ours && (!failure_ || (report_due_ && blamed_there()))) {
      report_due_ = false;
      failure_ = Failure{std::nullopt, i};
      ended_at_ = stop_at_ = Clock::now();
    }
  }
}

bool Attempt::shown(size_t number) const {
  return task_ ? task_->shown != Shown::not_at_all : number == 0 || job_.options.all_output;
}

std::string Attempt::name(size_t number) const {
  return task_ ? concat(task_->kind, " ", task_->number) : concat("rank ", number);
}

std::string Attempt::describe(size_t number) const {
  const RankEnd& end = ranks_[number].end;
  const std::string& host = members_[ranks_[number].member].name;
  const std::string who = concat(name(number), host.empty() ? "" : concat(" on ", host), " ");
  const std::string held = format_bytes(end.peak_rss_bytes);
  switch (end.out_of_memory) {
    case OutOfMemory::yes:
      return concat(who, "was killed by the kernel because memory ran out (SIGKILL; it had held up to ", held, ")");
    case OutOfMemory::perhaps:
      return concat(
          who, describe_end(end.wait_status), " (it had held up to ", held,
          "; a process of its control group, perhaps this one, was killed by the kernel because memory ran out)");
    case OutOfMemory::no:
      break;
  }
  return who + describe_end(end.wait_status);
}

std::string Attempt::describe_failure() const {
  if (!failure_) {
    return "";
  }
  const Member& member = members_[failure_->member];
  if (failure_->rank) {
    const std::string why = task_ ? "" : exception_of(*failure_->rank);
    return concat(describe(*failure_->rank), why.empty() ? "" : ": ", why);
  }
  return concat("host ", member.name, " was lost: ", member.place.why_lost());
}

std::string Attempt::exception_of(size_t number) const {
  return says_why(number) ? exception_in(ranks_[number].output.last_lines().lines()) : "";
}

void Attempt::report_failure() {
  if (!report_due_) {
    return;
  }
  report_due_ = false;
  const size_t number = culprit();
  failure_ = Failure{number, ranks_[number].member};
  if (wrong_input(number)) {
    report_input_error();
    return;
  }
  report_rank(number);
  for (const int rank : blame_of(number).ranks) {
    const auto& blamed = ranks_[static_cast<size_t>(rank)];
    if (blamed.live) {
      job_.screen.say(concat(name(static_cast<size_t>(rank)),
                             ", which it names, still runs; all it wrote: ", blamed.output.log().string()));
    }
  }
}

void Attempt::report_rank(size_t number) {
  const Rank& rank = ranks_[number];
  const std::string why = exception_of(number);
  job_.screen.say(concat(describe(number), " (pid ", rank.end.pid, ") ",
                         format_seconds(duration<double>(ended_at_ - started_at_).count()), " after start",
                         why.empty() ? "" : ": ", why));
  if (rank.end.out_of_memory != OutOfMemory::no) {
    job_.screen.say(
        "give the job more memory, or make it need less: smaller micro-batches, recomputation, a higher ZeRO stage, "
        "offload");
  }
  const int status = rank.end.wait_status;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) {
    job_.screen.say(
        "SIGBUS: a file that it had mapped was cut, or its disk failed: tokens, a token cache, or a model's folder. "
        "Restore the file and continue from the last checkpoint (trireme train: --resume)");
  }
  if (!shown(number)) {
    for (const std::string& line : rank.output.last_lines().lines()) {
      job_.screen.say(concat("| ", line));
    }
  }
  job_.screen.say(concat("all it wrote: ", rank.output.log().string()));
}

// Rank 0 is shown. It may still be ending when a rank that has its error from it has ended.
bool Attempt::rank_0_has_said(size_t number) const {
  if (!ranks_[0].live) {
    return exit_code_of(ranks_[0].end.wait_status) == kWrongInput;
  }
  const std::string error = exception_in(ranks_[number].output.last_lines().lines());
  return !error.empty() && error == exception_in(ranks_[0].output.last_lines().lines());
}

void Attempt::report_input_error() {
  const size_t number = *failure_->rank;
  if (shown(number) || (number != 0 && rank_0_has_said(number))) {
    return; // the user has seen it
  }
  const std::string words = ranks_[number].output.last_lines().last();
  job_.screen.say(words.empty() ? describe(number) : concat(describe(number), ": ", words));
}

} // namespace trireme::launch
