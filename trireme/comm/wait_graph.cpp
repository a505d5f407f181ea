#include <trireme/comm/wait_graph.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

namespace trireme::comm {
namespace {

/// True if a member waits in the group itself, and so does its part of an operation that all have joined. Device waits
/// without a thread count if the operation in question is a device's.
bool waits_here(const PeerView& view, const GroupView& group, bool devices_count) {
  const auto& waiting = group.progress.waiting;
  return view.answered && waiting && (devices_count || !waiting->on_device);
}

/// True if `a` is more informative than `b`: a thread rather than a device, then the newest.
bool comes_before(const GroupProgress::WaitedOperation& a, const GroupProgress::WaitedOperation& b) {
  return a.on_device != b.on_device ? b.on_device : a.seconds < b.seconds;
}

/// Ranks that have not joined this collective. If all have: those that have not finished it and do or await something
/// else; over shared memory bytes move only while a thread waits for them.
std::vector<int> missing(const std::map<int, PeerView>& ranks, const std::string& key, const GroupView& group,
                         int self) {
  const int64_t number = group.progress.waiting->number;
  const bool on_device = group.progress.waiting->on_device;
  std::vector<int> absent;
  std::vector<int> busy;
  for (const int member : group.members) {
    const auto view = ranks.find(member);
    if (member == self || view == ranks.end()) {
      continue;
    }
    const auto theirs = view->second.groups.find(key);
    if (theirs == view->second.groups.end() || theirs->second.progress.collectives < number) {
      absent.push_back(member);
      continue;
    }
    const OpSummary* op = theirs->second.progress.collective(number);
    if (op != nullptr && !op->done && !waits_here(view->second, theirs->second, on_device)) {
      busy.push_back(member);
    }
  }
  return absent.empty() ? busy : absent;
}

std::optional<Wait> wait_of(const std::map<int, PeerView>& ranks, int rank) {
  const PeerView& view = ranks.at(rank);
  const std::string* newest = nullptr;
  for (const auto& [key, group] : view.groups) {
    if (group.progress.awaited() != nullptr &&
        (newest == nullptr || comes_before(*group.progress.waiting, *view.groups.at(*newest).progress.waiting))) {
      newest = &key;
    }
  }
  return newest == nullptr ? std::nullopt : wait_in(ranks, rank, *newest);
}

} // namespace

std::optional<Wait> wait_in(const std::map<int, PeerView>& ranks, int rank, const std::string& key) {
  const PeerView& view = ranks.at(rank);
  const auto found = view.groups.find(key);
  if (found == view.groups.end() || found->second.progress.awaited() == nullptr || view.left || !view.answered) {
    return std::nullopt;
  }
  const GroupView& group = found->second;
  const OpSummary& op = *group.progress.awaited();
  return Wait{group.name,
              op,
              group.progress.waiting->seconds,
              group.progress.waiting->on_device,
              op.is_message() ? std::vector<int>{op.peer} : missing(ranks, key, group, rank),
              key};
}

WaitGraph follow_waits(const std::map<int, PeerView>& ranks, int from) {
  WaitGraph graph;
  for (const auto& [rank, view] : ranks) {
    if (auto wait = wait_of(ranks, rank)) {
      graph.waits.emplace(rank, std::move(*wait));
    }
  }
  std::vector<int> path = {from};
  std::set<int> seen;
  // Depth first; `path` gives the cycle.
  const auto visit = [&](const auto& self, int rank) -> void {
    const auto wait = graph.waits.find(rank);
    const bool waits = wait != graph.waits.end() && !wait->second.for_ranks.empty();
    if (!waits && rank != from) {
      graph.roots.push_back(rank);
    }
    for (const int next : waits ? wait->second.for_ranks : std::vector<int>{}) {
      const auto before = std::find(path.begin(), path.end(), next);
      if (before != path.end()) {
        graph.circle.assign(before, path.end());
      } else if (seen.insert(next).second) {
        path.push_back(next);
        self(self, next);
        path.pop_back();
      }
    }
  };
  visit(visit, from);
  if (graph.roots.empty()) {
    // If some of a cycle wait with a thread and the others only with their device, the threads of the others are busy
    // with something else.
    std::ranges::copy_if(graph.circle, std::back_inserter(graph.roots),
                         [&](int rank) { return graph.waits.at(rank).on_device; });
    if (graph.roots.size() == graph.circle.size()) {
      graph.roots.clear();
    }
  }
  std::sort(graph.roots.begin(), graph.roots.end());
  if (!graph.roots.empty()) {
    graph.circle.clear();
  }
  return graph;
}

std::string describe(const Wait& wait) {
  return concat("waits ", format_seconds(wait.seconds), wait.on_device ? " on its device in " : " in ",
                describe(wait.op), " of group \"", wait.group, '"',
                wait.for_ranks.empty() || wait.op.is_message() ? "" : " for " + name_ranks(wait.for_ranks));
}

} // namespace trireme::comm
