#pragma once

#include <trireme/comm/progress.h>

#include <map>
#include <string>
#include <vector>

namespace trireme::comm {

/// One rank that waits inside an operation.
struct Wait {
  std::string group;
  OpSummary op;
  double seconds = 0;
  /// World ranks without which it cannot go on; empty when all have come and something else is wrong.
  std::vector<int> for_ranks;
};

/// Who waits for whom, as far as the ranks have said: an operation of one rank waits for the other side of a message, or for
/// the members that have not come to a collective.
struct WaitGraph {
  /// By world rank; ranks that wait for nobody are not in it.
  std::map<int, Wait> waits;
  /// Ranks that others wait for, directly or through others, and that wait for nobody themselves: the culprits.
  std::vector<int> roots;
  /// Ranks that wait for each other in a circle, where there is no root.
  std::vector<int> circle;
};

/// Follows the waiting from rank `from`. Pure.
WaitGraph follow_waits(const std::map<int, PeerView>& ranks, int from);

/// `waits 12.0 s in recv #4 from rank 1 ("activations", 4.00 kB) of group "pipe" for rank 1`
std::string describe(const Wait& wait);

} // namespace trireme::comm
