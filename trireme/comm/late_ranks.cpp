#include <trireme/comm/late_ranks.h>

#include <trireme/comm/wait_graph.h>

#include <algorithm>
#include <optional>
#include <set>

namespace trireme::comm {
namespace {

using Waits = std::map<int, Wait>;

bool will_never_come(const PeerView& view) {
  return !view.answered || view.left || !view.error.empty();
}

/// The ranks that `from` waits for, directly or through others; itself only if they wait for it. Follows the waits that
/// `counts` accepts.
template <typename Counts>
std::set<int> reached(const Waits& waits, int from, const Counts& counts) {
  std::set<int> seen;
  std::vector<int> open = {from};
  while (!open.empty()) {
    const int rank = open.back();
    open.pop_back();
    const auto wait = waits.find(rank);
    if (wait == waits.end() || !counts(wait->second)) {
      continue;
    }
    for (const int next : wait->second.for_ranks) {
      if (seen.insert(next).second) {
        open.push_back(next);
      }
    }
  }
  return seen;
}

/// True if all ranks that joined this operation and have not finished it wait long too: a recent one may be about to
/// finish.
bool all_wait_for_long(const std::map<int, PeerView>& ranks, const Wait& own, int rank, double seconds) {
  for (const int member : ranks.at(rank).groups.at(own.key).members) {
    const auto view = ranks.find(member);
    const auto theirs =
        view == ranks.end() ? std::map<std::string, GroupView>::const_iterator() : view->second.groups.find(own.key);
    if (view == ranks.end() || theirs == view->second.groups.end()) {
      continue;
    }
    const OpSummary* const op = theirs->second.progress.collective(own.op.number);
    if (op == nullptr || op->done) {
      continue;
    }
    const std::optional<Wait> theirs_here = wait_in(ranks, member, own.key);
    if (!theirs_here || theirs_here->seconds < seconds) {
      return false;
    }
  }
  return true;
}

} // namespace

Outlook judge(const std::map<int, PeerView>& ranks, int from, const std::string& key, double seconds) {
  Waits waits = follow_waits(ranks, from).waits;
  const std::optional<Wait> own = wait_in(ranks, from, key);
  if (!own || own->seconds < seconds) {
    return {};
  }
  waits.insert_or_assign(from, *own);
  const auto lasts = [&](const Wait& wait) { return wait.seconds >= seconds; };
  const auto blocks = [&](const Wait& wait) { return lasts(wait) && !wait.on_device; };
  const auto is_stuck = [&](int rank) {
    const auto wait = waits.find(rank);
    return wait != waits.end() && lasts(wait->second) && wait->second.for_ranks.empty() &&
           all_wait_for_long(ranks, wait->second, rank, seconds);
  };

  const std::set<int> awaited = reached(waits, from, lasts);
  bool hopeless = is_stuck(from);
  bool all_wait = !awaited.empty();
  bool threads_wait = !own->on_device;
  for (const int rank : awaited) {
    const auto view = ranks.find(rank);
    const auto wait = waits.find(rank);
    hopeless = hopeless || view == ranks.end() || will_never_come(view->second) || is_stuck(rank);
    all_wait = all_wait && wait != waits.end() && lasts(wait->second);
    threads_wait = threads_wait || (wait != waits.end() && blocks(wait->second));
    // Threads that wait for each other. With device waits, a thread may still arrive.
    hopeless =
        hopeless || (wait != waits.end() && blocks(wait->second) && reached(waits, rank, blocks).count(rank) != 0);
  }
  const bool devices_only = all_wait && !threads_wait;
  if (hopeless || devices_only) {
    return {.kind = Outlook::Kind::hopeless};
  }
  Outlook outlook;
  std::vector<int> moving;
  for (const int rank : reached(waits, from, [](const Wait&) { return true; })) {
    const auto wait = waits.find(rank);
    if (rank == from || ranks.count(rank) == 0 || will_never_come(ranks.at(rank))) {
      continue;
    }
    if (wait == waits.end() || (wait->second.on_device && lasts(wait->second))) {
      outlook.late.push_back(rank);
    } else if (wait->second.seconds < seconds / 4) {
      moving.push_back(rank);
    }
  }
  if (outlook.late.empty()) { // ranks that exchange data with each other
    outlook.late = std::move(moving);
  }
  outlook.kind = outlook.late.empty() ? Outlook::Kind::open : Outlook::Kind::late;
  return outlook;
}

} // namespace trireme::comm
