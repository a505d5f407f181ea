#pragma once

#include <trireme/comm/backend.h>
#include <trireme/comm/progress.h>

#include <chrono>
#include <string>
#include <vector>

namespace trireme::comm {

/// The rank whose operation failed.
struct Asker {
  std::string group;
  /// World ranks of the group.
  std::vector<int> members;
  int world_rank = 0;
  int world_size = 1;
  /// Duration of the operation, if it is not done in time.
  std::chrono::milliseconds waited{0};
  /// This rank's own progress in the group.
  GroupProgress own = {};
};

/// Writes the error of a failed operation: the operation, the ranks that are missing, dead, gone or in another
/// operation, the ranks that block those, and what to do next. Ranks are world ranks. Pure: depends on the arguments
/// only.
PeerError explain(const Asker& asker, const OpSummary& op, const Trouble& trouble, const RollCall& roll_call);

} // namespace trireme::comm
