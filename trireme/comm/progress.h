#pragma once

#include <trireme/base/notes.h>
#include <trireme/base/stacks.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// "rank 5", "ranks 5 and 7", "ranks 1, 2 and 3".
std::string name_ranks(const std::vector<int>& ranks);

/// One operation of a group, as ranks report it. Created for every operation: only `what` may allocate.
struct OpSummary {
  /// Counts collectives from 1; messages (send, recv) have their own count.
  int64_t number = 0;
  /// Like dtype and detail: a literal, or from keep_name().
  std::string_view op;
  int64_t bytes = 0;
  std::string_view dtype;
  std::string what;
  /// World rank of the other side of a message, -1 for a collective.
  int peer = -1;
  bool done = false;
  /// Whatever else must be the same on all ranks: "max", "root 1".
  std::string_view detail = "";

  bool is_message() const { return peer >= 0; }
  /// True if both agree in everything that must be the same on all ranks of a group.
  bool fits(const OpSummary& other) const {
    return op == other.op && bytes == other.bytes && dtype == other.dtype && detail == other.detail;
  }
};

/// `all_reduce #7 ("loss", 4 B)`; `recv #2 from rank 1 ("mask", 16 B)`.
std::string describe(const OpSummary& op);

/// One rank's progress in one group: its last operations, the newest last, and older ones in progress.
struct GroupProgress {
  static constexpr size_t kRecent = 16;
  static constexpr size_t kMostUnderWay = 1024;
  int64_t collectives = 0;
  int64_t messages = 0;
  std::deque<OpSummary> recent;
  /// The operation that a thread waits for, or else a device's oldest, and for how long.
  struct WaitedOperation {
    int64_t number = 0;
    bool message = false;
    double seconds = 0;
    /// No thread waits: a device has not finished it.
    bool on_device = false;
  };
  std::optional<WaitedOperation> waiting = std::nullopt;

  void note(OpSummary op);
  void mark_done(const OpSummary& op);
  const OpSummary* last() const { return recent.empty() ? nullptr : &recent.back(); }
  /// The collective of that number, or nullptr if it is not a recent one.
  const OpSummary* collective(int64_t number) const;
  /// The operation that `waiting` names, or nullptr.
  const OpSummary* awaited() const;
};

/// Reads an integer that fits into int64_t. Throws nlohmann's type_error otherwise, even if get() would
/// convert.
int64_t whole_number(const nlohmann::json& json);

nlohmann::json to_json(const GroupProgress& progress);
GroupProgress progress_from_json(const nlohmann::json& json);

/// A group as one of its ranks sees it. Members are world ranks.
struct GroupView {
  std::string name;
  std::vector<int> members;
  GroupProgress progress;
};

/// One rank's view of another at the time of a roll call.
struct PeerView {
  /// Its watch thread answered this roll call: the process is alive.
  bool answered = false;
  /// It has closed its world.
  bool left = false;
  /// The error that it reported, "" without one.
  std::string error = "";
  /// Its progress in the group of the roll call; nullopt if none is published.
  std::optional<GroupProgress> progress = std::nullopt;
  /// All its groups, by key.
  std::map<std::string, GroupView> groups = {};
  std::vector<ThreadNotes> notes = {};
  /// Stack of its main thread, innermost first; only if the roll call asked for it.
  std::vector<std::string> stack = {};
  int64_t process = 0;
  /// Equal to this rank's if it can inspect that process.
  std::string place = "";
  /// The kernel's state of a process on this host that does not answer: "is stopped (...)".
  std::string state = "";

  /// Its process is gone and had not closed its world: it was killed, or called exit().
  bool vanished() const { return !answered && !left && state == kProcessEnded; }
};

/// The published view of a rank. The reader fills in `answered` and `progress`.
nlohmann::json to_json(const PeerView& view);
PeerView view_from_json(const nlohmann::json& json);

/// A rank's last reported activity: "in layer 7 (ReLU), in forward of micro-batch 5, for 12.0 s"; "" if
/// none.
std::string describe_activity(const PeerView& view);

struct RollCall {
  /// False when the store itself does not answer: its host is stopped, dead or unreachable.
  bool store_answers = true;
  /// World rank that hosts the store, -1 if no rank does.
  int store_host = -1;
  /// The kernel's state of the store's process, if it runs on this machine.
  std::string store_host_state = "";
  /// The store's host has closed its world.
  bool store_host_left = false;
  /// By world rank, without this one.
  std::map<int, PeerView> peers = {};
  /// This rank as the others see it.
  PeerView own = {};
};

} // namespace trireme::comm
