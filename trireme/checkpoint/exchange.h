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
  /// Whether it is an InputError or an Error.
  bool is_input = false;
  /// Where it comes from: the "[part]" of its text, "checkpoint" without one.
  std::string part = {};
  /// Whether it is a PeerError: the training ends with it.
  bool is_peer = false;

  explicit operator bool() const {
    return !happened.empty();
  }
  [[noreturn]] void raise() const;
  /// The text of a caught exception, and its "[part]" apart. Of the file system's: what failed, where, and for a full
  /// disk the free space.
  static Problem of(const std::exception& error);
};

nlohmann::json to_json(const Problem& problem);
Problem problem_from(const nlohmann::json& json);

/// "rank 1: ...; ranks 2 and 3: ..." of the reports that carry a problem; names no rank where there is only one. It is
/// of the first one's part; one of another part is quoted with it.
Problem joined(const std::vector<Problem>& of_ranks);

/// The same of what reports have under "problem"; a report without one has none.
Problem joined(const std::vector<nlohmann::json>& reports);

/// Sends every rank's `report` to rank 0, which decides, and returns rank 0's decision
/// on every rank. An exception in the decision is thrown on every rank. Collective.
/// Cost: the reports once to rank 0, the decision to every rank.
nlohmann::json decide(const comm::Group& group, const nlohmann::json& report,
                      const std::function<nlohmann::json(const std::vector<nlohmann::json>& reports)>& on_rank_0);

} // namespace trireme::checkpoint
