#pragma once

#include <trireme/comm/backend.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace trireme::comm {

/// With TRIREME_CHECK=1: the order in which the groups of the same ranks give collectives to a device. Kernels of two
/// communicators that wait for each other's ranks never end, so NCCL needs one order on all ranks, over all groups.
///
/// One object serves all groups of these ranks in a process. Groups that share only some of their ranks are not
/// compared; what ranks then wait for is in the hang report. Thread-safe.
class LaunchOrder {
 public:
  /// `open` connects the members over the host when the first launch is compared. Members are world ranks.
  LaunchOrder(std::vector<int> members, std::function<std::shared_ptr<Backend>()> open)
      : members_(std::move(members)), open_(std::move(open)) {}

  /// Compares this rank's next launch with the other ranks'. `call` describes it with its group. Returns "" or the
  /// first difference, the same on all ranks. Collective. Cost: 256 bytes per rank, and all wait for each other.
  /// Errors: those of opening; Trouble.
  std::string difference(const std::string& call);

  /// Makes every current and later call throw Trouble.
  void interrupt();
  /// Idempotent.
  void close();

 private:
  const std::vector<int> members_;
  const std::function<std::shared_ptr<Backend>()> open_;
  std::mutex comparing_;
  std::mutex mutex_; // held briefly: interrupt() must not wait for a comparison
  std::shared_ptr<Backend> channel_;
  bool interrupted_ = false;
  int64_t launches_ = 0;
};

} // namespace trireme::comm
