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
/// Only members of the last round propose the next one while one of them lives, because they may be training.
/// Among them those that have the training's state go before those that were new and have not got it.
/// In a store that was lost and is empty again there is no last round: its members are those that come with the state.

/// A decision about a round, as it is in the store. Number 0: there was none yet.
struct Decision {
  int64_t number = 0;
  /// By rank. `places`: of each, MeetingOptions::place.
  std::vector<int64_t> members = {};
  std::vector<int> places = {};
  /// Members that had no part in the training before. They have its state once they say so (Meeting::settle()).
  std::set<int64_t> fresh = {};
  /// Processes for which the round has no room.
  std::set<int64_t> spares = {};
  /// What the proposer had seen of changes.
  int64_t changes = 0;
  /// There is no round of this number, and none after it: the training is over.
  bool finished = false;

  std::string text() const;
  static Decision parse(const std::string& text);
  bool has_member(int64_t id) const;
};

/// A process that lives.
struct Process {
  /// The round that it waits for or was in last; 0: it has not come yet.
  int64_t come = 0;
  /// The round whose state it says it has: one that was new in it, or a member whose connection broke and that has
  /// another number since. 0: the state of a store that was lost.
  std::optional<int64_t> state = std::nullopt;
};

/// What the store knows of the processes.
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

/// The last round's members that live, under another number too; where there was no round, those that come with the
/// training's state.
std::set<int64_t> living_members(const Decision& last, const View& view);

/// Whether all its members live, under the numbers that it has.
bool is_whole(const Decision& last, const View& view);

/// Those of them that have the training's state: all that were not fresh, or say so.
std::set<int64_t> holders(const Decision& last, const View& view);

/// Whether `id` may propose the round after `last`. While members of the last round live, one of those that have the
/// state, or, where all of those are gone, any other of its members. Else anybody.
bool may_propose(const Decision& last, const View& view, int64_t id);

/// Whether the round may begin for one who may propose it. `waited`: since it came, or has seen that no member lives.
bool complete(const Decision& last, const View& view, std::chrono::milliseconds waited, const Limits& limits);

/// Where a process that is new is in line.
struct Order {
  int64_t first_round = 0; // that it came for
  int place = 0;
};

/// The round after `last`, of those that have come: members with the state in the order of their ranks, then other
/// members, then new processes by Order and number. `orders`: of all that have come.
Decision next_decision(const Decision& last, const View& view, const std::map<int64_t, Order>& orders, int max_ranks);

} // namespace trireme::store
