#pragma once

#include <trireme/comm/progress.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme::comm {

/// One rank that waits in an operation, itself or its device.
struct Wait {
  std::string group;
  OpSummary op;
  double seconds = 0;
  /// Its device waits, and no thread.
  bool on_device = false;
  /// World ranks that it waits for; empty if all have joined and the cause is another.
  std::vector<int> for_ranks;
  /// Key of the group.
  std::string key;
};

/// Which rank waits for which, as far as known: an operation waits for the other side of a message, or for the members
/// that have not joined a collective.
struct WaitGraph {
  /// By world rank, without ranks that do not wait.
  std::map<int, Wait> waits;
  /// Ranks that others wait for, directly or through others, and that do not wait themselves: the culprits.
  std::vector<int> roots;
  /// A cycle of ranks that wait for each other, if there is no root.
  std::vector<int> circle;
};

/// The wait of `rank` in group `key`; nullopt if it does not wait. Pure.
std::optional<Wait> wait_in(const std::map<int, PeerView>& ranks, int rank, const std::string& key);

/// Follows the waiting from rank `from`. Pure.
WaitGraph follow_waits(const std::map<int, PeerView>& ranks, int from);

/// `waits 12.0 s in recv #4 from rank 1 ("activations", 4.00 kB) of group "pipe" for rank 1`
std::string describe(const Wait& wait);

} // namespace trireme::comm
