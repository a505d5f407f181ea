#pragma once

#include <trireme/comm/store.h>

#include <cstdint>
#include <optional>
#include <set>

namespace trireme::comm {

/// Finds ranks that ended without leaving: the store saw their watch thread's connection end, because the process was
/// killed or its host is silent (store::kSilence). Each rank registers a last will with the store; a store without last
/// wills (torchrun's agent) reports no such rank.
class LastWills {
 public:
  LastWills(int rank, int size) : rank_(rank), size_(size) {}

  struct Seen {
    /// The counter that calls for the ranks' attention.
    int64_t pulse = 0;
    /// Ranks that ended since the last call.
    std::set<int> gone = {};
    /// The rank that hosts the store leaves.
    bool host_left = false;
  };
  /// Cost: one round trip, two if a rank has ended. The first call registers this rank's will.
  Seen look(Store& store);
  /// Removes this rank's will: it leaves normally. The store's host also announces that it leaves, because afterwards
  /// no rank can be queried.
  void take_back(Store& store, bool is_host);

 private:
  int rank_;
  int size_;
  /// Whether the store supports last wills; nullopt before the first call.
  std::optional<bool> kept_;
  int64_t seen_ = 0;
  std::set<int> gone_;
};

} // namespace trireme::comm
