#pragma once

#include <trireme/comm/group.h>

#include <numeric>
#include <string>
#include <vector>

namespace trireme::comm {

/// Makes a group of the same ranks for separate messages, which need no common order with those of `ranks`.
/// Collective.
inline Group same_ranks(const Group& ranks, const std::string& name) {
  std::vector<int> all(static_cast<size_t>(ranks.size()));
  std::iota(all.begin(), all.end(), 0);
  return ranks.subgroup(all, name);
}

} // namespace trireme::comm
