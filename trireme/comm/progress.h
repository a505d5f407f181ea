#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace trireme::comm {

/// One operation of a group, as ranks tell each other about it.
struct OpSummary {
  /// Counts collectives from 1; messages (send, recv) have their own count.
  int64_t number = 0;
  std::string op;
  int64_t bytes = 0;
  std::string dtype;
  std::string what;
  /// World rank of the other side of a message, -1 for a collective.
  int peer = -1;
  bool done = false;

  bool is_message() const {
    return peer >= 0;
  }
};

/// `all_reduce #7 ("loss", 4 B)`; `recv #2 from rank 1 ("mask", 16 B)`.
std::string describe(const OpSummary& op);

/// Where one rank is in one group: its last operations, the newest last.
struct GroupProgress {
  static constexpr size_t kRecent = 16;
  int64_t collectives = 0;
  int64_t messages = 0;
  std::deque<OpSummary> recent;

  void note(OpSummary op);
  void mark_done(const OpSummary& op);
  const OpSummary* last() const {
    return recent.empty() ? nullptr : &recent.back();
  }
  /// The collective of that number, or nullptr when it is not among the recent ones.
  const OpSummary* collective(int64_t number) const;
};

nlohmann::json to_json(const GroupProgress& progress);
GroupProgress progress_from_json(const nlohmann::json& json);

/// What one rank knows of another at the time of a roll call.
struct PeerView {
  /// Its watch thread answered this roll call: the process lives.
  bool answered = false;
  /// It has closed its world.
  bool left = false;
  /// Its own complaint, "" when it has none.
  std::string error;
  /// In the group in question; empty when it has published nothing there.
  std::optional<GroupProgress> progress;
};

struct RollCall {
  /// False when the store itself does not answer: its host is stopped, dead or unreachable.
  bool store_answers = true;
  /// World rank that hosts the store, -1 when it is no rank.
  int store_host = -1;
  /// By world rank, without this one.
  std::map<int, PeerView> peers;
};

} // namespace trireme::comm
