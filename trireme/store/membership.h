#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme::store {

/// The rules of Meeting, without a store: who may propose a round, when, and with which members.
///
/// Only members of the last round propose the next one while one of them lives, because they may be training. Members
/// with the training's state come before new ones that have not received it. A store that was lost and is empty again
/// has no last round: its members are the processes that join with the state.

/// A decision about a round, as stored. Number 0: there was none yet.
struct Decision {
  int64_t number = 0;
  /// By rank; `places` has the MeetingOptions::place of each.
  std::vector<int64_t> members = {};
  std::vector<int> places = {};
  /// Members that were not in the training before. They have its state once they call Meeting::settle().
  std::set<int64_t> fresh = {};
  /// Processes for which the round has no room.
  std::set<int64_t> spares = {};
  /// The counter of changes that the proposer had read.
  int64_t changes = 0;
  /// The training has finished: there is no round with this number or a later one.
  bool finished = false;

  std::string text() const;
  static Decision parse(const std::string& text);
  bool has_member(int64_t id) const;
};

/// A living process.
struct Process {
  /// The round that it waits for or was last in; 0: it has not joined yet.
  int64_t come = 0;
  /// The round whose state it reports to have: a new member of it, or a member with a new number after its connection
  /// broke. 0: the state of a store that was lost.
  std::optional<int64_t> state = std::nullopt;
};

/// The store's knowledge about processes.
struct View {
  int64_t changes = 0;
  std::map<int64_t, Process> living = {};

  bool has_come(int64_t id, int64_t round) const;
  std::set<int64_t> come(int64_t round) const;
};

struct Limits {
  int min_ranks = 1;
  int max_ranks = 0; // 0: any number
  std::chrono::milliseconds start_patience{};
  std::chrono::milliseconds late_patience{};
};

/// The living members of the last round, also under another number; if there was no round, the processes that joined
/// with the training's state.
std::set<int64_t> living_members(const Decision& last, const View& view);

/// Whether all members live, under their numbers in the decision.
bool is_whole(const Decision& last, const View& view);

/// The living members with the training's state: all that were not fresh, or have reported it.
std::set<int64_t> holders(const Decision& last, const View& view);

/// Whether `id` may propose the round after `last`. While members of the last round live: those with the state or, if
/// all of those are gone, any other member. Else any process.
bool may_propose(const Decision& last, const View& view, int64_t id);

/// Whether a process that may propose the round may begin it. `waited`: since it joined, or since no member lived.
bool complete(const Decision& last, const View& view, std::chrono::milliseconds waited, const Limits& limits);

/// Position of a new process in the queue.
struct Order {
  int64_t first_round = 0; // that it waited for
  int place = 0;
};

/// The round after `last`, made of the processes that joined: members with the state in order of their ranks, other
/// members, then new processes by Order and number. `orders`: of all that joined.
Decision next_decision(const Decision& last, const View& view, const std::map<int64_t, Order>& orders, int max_ranks);

} // namespace trireme::store
