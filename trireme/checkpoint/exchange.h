#pragma once

#include <trireme/comm/group.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace trireme::checkpoint {

/// A failure as it travels between ranks.
struct Problem {
  std::string happened;
  std::string next;
  /// InputError rather than Error.
  bool is_input = false;

  explicit operator bool() const {
    return !happened.empty();
  }
  [[noreturn]] void raise() const;
  /// What a caught exception says, without its "[part]".
  static Problem of(const std::exception& error);
};

nlohmann::json to_json(const Problem& problem);
Problem problem_from(const nlohmann::json& json);

/// "rank 1: ...; rank 3: ..." of the reports that carry a problem; names no rank where there is only one.
Problem joined(const std::vector<Problem>& of_ranks);

/// Brings every rank's `report` to rank 0, lets it decide, and returns rank 0's decision
/// on every rank. A decision that throws is thrown on every rank. Collective.
/// Cost: the reports once over the wire to rank 0, the decision to everybody.
nlohmann::json decide(const comm::Group& group,
                      const nlohmann::json& report,
                      const std::function<nlohmann::json(const std::vector<nlohmann::json>& reports)>& on_rank_0);

} // namespace trireme::checkpoint
