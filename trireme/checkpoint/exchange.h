#pragma once

#include <trireme/comm/group.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace trireme::checkpoint {

/// An error, in the form that ranks send each other.
struct Problem {
  std::string happened;
  std::string next;
  /// True for an InputError, false for an Error.
  bool is_input = false;
  /// Its origin: the "[part]" of its text, "checkpoint" without one.
  std::string part = {};
  /// True for a PeerError, which ends the training.
  bool is_peer = false;

  explicit operator bool() const { return !happened.empty(); }
  [[noreturn]] void raise() const;
  /// The text of a caught exception, with its "[part]" split off. For errors of the file system: the operation, the
  /// path and, for a full disk, the free space.
  static Problem of(const std::exception& error);
};

nlohmann::json to_json(const Problem& problem);
Problem problem_from(const nlohmann::json& json);

/// "rank 1: ...; ranks 2 and 3: ..." from the reports with a problem; names no rank if there is only one report. The
/// part is that of the first problem; a problem of another part is quoted with its own.
Problem joined(const std::vector<Problem>& of_ranks);

/// The same from the member "problem" of reports; a report without it has none.
Problem joined(const std::vector<nlohmann::json>& reports);

/// Sends every rank's `report` to rank 0, which decides, and returns rank 0's decision
/// on every rank. An exception in the decision is thrown on every rank. Collective.
/// Cost: the reports once to rank 0, the decision to every rank.
nlohmann::json decide(const comm::Group& group, const nlohmann::json& report,
                      const std::function<nlohmann::json(const std::vector<nlohmann::json>& reports)>& on_rank_0);

} // namespace trireme::checkpoint
