#pragma once

#include <trireme/comm/group.h>
#include <trireme/config/averaging_options.h>
#include <trireme/shards/bucket/flat_parameters.h>
#include <trireme/shards/bucket/shard_plan.h>
#include <trireme/shards/data_parallel/gradient_sync.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::parallel {

/// Steps the model of a round's start by the change of the replicas' mean. Each rank steps an equal slice of every
/// bucket.
///
/// x: parameters at the start of the round. y: mean of the replicas at its end. m: momentum. lr: learning rate of the
/// round.
///
///   slowmo:    m = beta * m + (x - y) / lr;  x = x - alpha * lr * m                    (arXiv:1910.00643, algorithm 1)
///
///   nesterov:  m = mu * m + (x - y);         x = x - outer_lr * ((x - y) + mu * m)     (PyTorch's SGD, gradient x - y)
///
/// Memory: 8 bytes for each parameter, divided by the number of ranks.
class OuterOptimizer {
 public:
  OuterOptimizer(const AveragingOptions& options, comm::Group ranks) : options_(options), ranks_(std::move(ranks)) {}

  void attach(const std::vector<bucket::FlatParameters*>& buffers);
  /// Begins a round: the next keep_start() of each bucket sets its start.
  void begin_round();
  /// Saves the bucket's parameters, [n], before the first step of the round changes them. Later calls in the round do
  /// nothing.
  void keep_start(int64_t buffer, int64_t bucket, const at::Tensor& parameters);
  bool has_start(int64_t buffer, int64_t bucket) const { return parts_[buffer][bucket].has_start; }
  /// Returns this rank's slice of a bucket's parameters.
  at::Tensor part_of(const at::Tensor& parameters) const;
  /// Replaces `part`, which holds the replicas' mean, by the outer optimizer's result. `lr`: slowmo's; if it is 0, the
  /// mean does not change.
  void step(int64_t buffer, int64_t bucket, at::Tensor part, double lr);
  /// Returns the start of the round and the momentum of this rank's slice of a bucket. A joining replica receives them.
  std::vector<at::Tensor> values(int64_t buffer, int64_t bucket) const {
    return {parts_[buffer][bucket].start, parts_[buffer][bucket].momentum};
  }
  void take(int64_t buffer, int64_t bucket, const std::vector<at::Tensor>& values);
  /// Resets all momentum.
  void reset();
  /// Visits the momentum, as "outer_momentum".
  void for_each_state(const SyncState::Visit& visit);

 private:
  struct BucketState {
    at::Tensor start;
    at::Tensor momentum;
    bool has_start = false;
  };

  AveragingOptions options_;
  comm::Group ranks_;
  std::vector<bucket::FlatParameters*> buffers_;
  std::vector<std::vector<BucketState>> parts_; // by buffer and bucket
};

} // namespace trireme::parallel
