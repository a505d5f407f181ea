#pragma once

#include <trireme/comm/store.h>

#include <cstdint>
#include <optional>
#include <set>

namespace trireme::comm {

/// Which ranks have gone without a good-bye, as the store knows it: the connection of their watch thread has ended, because the
/// process was killed or because its host is silent (store::kSilence). Each rank leaves its last will with the store; where the
/// store keeps none (torchrun's agent), nobody is ever seen to go.
class LastWills {
 public:
  LastWills(int rank, int size) : rank_(rank), size_(size) {}

  struct Seen {
    /// The counter that raises the ranks' attention.
    int64_t pulse = 0;
    /// Gone since the last look.
    std::set<int> gone = {};
  };
  /// Cost: one round trip, one more when somebody has gone. Leaves this rank's will the first time.
  Seen look(Store& store);
  /// This rank leaves in good order.
  void take_back(Store& store);

 private:
  int rank_;
  int size_;
  /// Whether the store keeps wills; nothing before it was asked.
  std::optional<bool> kept_;
  int64_t seen_ = 0;
  std::set<int> gone_;
};

} // namespace trireme::comm
