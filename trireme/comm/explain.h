#pragma once

#include <trireme/comm/backend.h>
#include <trireme/comm/progress.h>

#include <chrono>
#include <string>
#include <vector>

namespace trireme::comm {

/// The rank that asks why an operation failed.
struct Asker {
  std::string group;
  /// World ranks of the group.
  std::vector<int> members;
  int world_rank = 0;
  int world_size = 1;
  /// How long the operation has lasted, if it is not done in time.
  std::chrono::milliseconds waited{0};
  /// What this rank itself did in the group.
  GroupProgress own = {};
};

/// Writes the error of an operation that failed: which operation, which ranks are missing, dead, gone
/// or in another operation, which ranks block those, and what to do next. Ranks are world ranks.
/// Pure: depends on the arguments only.
PeerError explain(const Asker& asker, const OpSummary& op, const Trouble& trouble, const RollCall& roll_call);

} // namespace trireme::comm
