#include <trireme/comm/long_waits.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/units.h>
#include <trireme/comm/call_advice.h>
#include <trireme/comm/hang_report.h>
#include <trireme/comm/wait_graph.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;

/// A rank without an answer for this long is dead or stopped; on a busy host its thread may wait for a core.
constexpr milliseconds kShortestPatience{5000}, kLongestPatience{15'000};
constexpr size_t kNamedRanks = 8;
constexpr const char* kWarnings = "late/warnings";

double in_seconds(milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

std::string warning_key(int64_t number) {
  return concat("late/warning/", number);
}

/// Unchanged as long as these ranks do what they are late with.
std::string what_they_do(const std::map<int, PeerView>& ranks, const std::vector<int>& late) {
  std::string text = "late/ranks";
  for (const int rank : late) {
    int64_t operations = 0;
    for (const auto& [key, group] : ranks.at(rank).groups) {
      operations += group.progress.collectives + group.progress.messages;
    }
    text += concat('/', rank, ':', operations);
  }
  return text;
}

} // namespace

// Members count collectives alike, and each rank counts its own messages.
std::string LongWaits::name_of(const std::string& key, const GroupProgress::WaitedOperation& wait) const {
  return concat(key, '/', wait.message ? concat('m', rank_, '/') : "", wait.number);
}

void LongWaits::step(Store& store, const View& view) {
  if (limits_.warn_after.count() == 0) {
    return;
  }
  std::vector<Look> answered;
  {
    const std::lock_guard lock(mutex_);
    const auto first =
        std::stable_partition(looks_.begin(), looks_.end(), [](const Look& look) { return !look.question->answered; });
    answered.assign(std::make_move_iterator(first), std::make_move_iterator(looks_.end()));
    looks_.erase(first, looks_.end());
  }
  for (const Look& look : answered) {
    conclude(store, look, view);
  }
  look(store);
}

void LongWaits::look(Store& store) {
  const double period = in_seconds(limits_.warn_after);
  std::map<std::string, int64_t> due;
  for (const auto& [group, wait] : groups_.waits(period)) {
    const std::string name = name_of(group->key(), wait);
    const auto times = static_cast<int64_t>(wait.seconds / period);
    const auto before = due_.find(name);
    due[name] = times;
    if ((before != due_.end() && before->second >= times) ||
        store.add(concat("late/look/", name, '/', times), 1) != 1) {
      continue;
    }
    std::vector<int> all(static_cast<size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    const auto patience = std::clamp(limits_.warn_after / 4, kShortestPatience, kLongestPatience);
    const std::lock_guard lock(mutex_);
    auto question = roll_calls_.add(all, group->key(), RollCalls::Clock::now() + patience, /*stacks=*/false);
    looks_.push_back({group, group->key(), wait, std::move(question)});
  }
  due_ = std::move(due);
}

void LongWaits::conclude(Store& store, const Look& look, const View& view) const {
  std::map<int, PeerView> ranks = look.question->result.peers;
  ranks[rank_] = view();
  const auto wait = wait_in(ranks, rank_, look.key);
  if (!wait || wait->op.number != look.wait.number || wait->op.is_message() != look.wait.message) {
    return; // it is over
  }
  const Outlook outlook = judge(ranks, rank_, look.key, in_seconds(limits_.warn_after));
  if (outlook.kind == Outlook::Kind::hopeless && limits_.gives_up) {
    if (const auto group = look.group.lock()) {
      GroupProgress::WaitedOperation now = look.wait;
      now.seconds = wait->seconds;
      group->give_up(now, in_seconds(limits_.warn_after));
    }
  } else if (outlook.kind == Outlook::Kind::late &&
             store.add(concat("late/operation/", name_of(look.key, look.wait)), 1) == 1) {
    warn_once(store, what_they_do(ranks, outlook.late), ranks, describe_late(look, ranks, outlook.late));
  }
}

std::string LongWaits::describe_late(const Look& look, const std::map<int, PeerView>& ranks,
                                     const std::vector<int>& late) const {
  const Wait wait = *wait_in(ranks, rank_, look.key);
  std::string text = concat(describe(wait.op), " in group \"", wait.group, "\" is not done after ",
                            format_seconds(wait.seconds), " on rank ", rank_, " of ", size_, ": it waits for ",
                            name_ranks(late), late.size() == 1 ? ", which is late" : ", which are late");
  for (size_t shown = 0; shown < std::min(late.size(), kNamedRanks); ++shown) {
    text += "\n  " + describe_rank(late[shown], ranks.at(late[shown]));
  }
  text +=
      concat("\n  It goes on until ", format_seconds(in_seconds(wait.on_device ? limits_.end_on_device : limits_.end)),
             " have passed. TRIREME_TIMEOUT=SECONDS changes that, TRIREME_WARN_AFTER=SECONDS when this warning comes.");
  const std::string advice = advice_for(wait.group);
  return text + (advice.empty() ? "" : "\n  " + advice);
}

void LongWaits::warn_once(Store& store, const std::string& key, const std::map<int, PeerView>& ranks,
                          const std::string& text) const {
  if (store.add(key, 1) != 1) {
    return;
  }
  int printer = rank_;
  for (const auto& [rank, view] : ranks) {
    printer = view.answered && !view.left ? std::min(printer, rank) : printer;
  }
  const nlohmann::json warning = {{"text", text}, {"printer", printer}};
  const int64_t number = store.add(kWarnings, 1);
  store.set(warning_key(number), warning.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  raise_pulse(store);
}

void LongWaits::print_warnings(Store& store) {
  if (limits_.warn_after.count() == 0) {
    return;
  }
  const int64_t warnings = store.add(kWarnings, 0);
  while (printed_ < warnings) {
    const auto text = store.find(warning_key(printed_ + 1));
    if (!text) {
      return; // counted but not written yet; its pulse is still to come
    }
    ++printed_;
    const auto warning = nlohmann::json::parse(*text);
    if (warning.at("printer") == rank_) {
      log::warning(warning.at("text").get<std::string>());
    }
  }
}

} // namespace trireme::comm
