#pragma once

#include <trireme/comm/group.h>

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace trireme::comm {

/// The value of a leaf that a document does not have.
inline constexpr std::string_view kNothing = "nothing";

/// A leaf of a JSON document that is not the same on all ranks.
struct LeafDifference {
  struct Value {
    std::string text;       ///< JSON, or kNothing
    std::vector<int> ranks; ///< of the world
  };
  std::string path;          ///< a JSON pointer: "/optimizer/params/lr"
  std::vector<Value> values; ///< two or more, in the order of the ranks

  /// "ranks 1, 2 and rank 0": those with the second value, and the first rank.
  std::string ranks() const;
  const std::string& first() const { return values[0].text; }
  const std::string& other() const { return values[1].text; }
};

/// Compares a document of each rank, an object or an array, by its leaves, and returns those that differ, the same on
/// every rank: in the order of the first rank's document, then those that it lacks. Empty for equal documents. `what`
/// names it in hang reports. Collective. Cost: 8 bytes per rank; all documents to every rank if some differ.
std::vector<LeafDifference> differences(const Group& group, const nlohmann::json& document, std::string_view what);
std::vector<LeafDifference> differences(const Group& group, const nlohmann::ordered_json& document,
                                        std::string_view what);

} // namespace trireme::comm
