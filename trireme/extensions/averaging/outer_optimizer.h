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

/// Steps the model that the replicas have begun a round with by the way that their mean has come; each rank its equal
/// part of every bucket.
///
/// With x the parameters at the beginning of the round, y the mean of the replicas at its end, m the momentum, and lr
/// the learning rate of the round:
///   slowmo:    m = beta * m + (x - y) / lr;  x = x - alpha * lr * m     (arXiv:1910.00643, algorithm 1)
///   nesterov:  m = mu * m + (x - y);         x = x - outer_lr * ((x - y) + mu * m)     (SGD as PyTorch's, with x - y
///   as the gradient)
/// Memory: 8 bytes for each parameter, divided by the number of ranks.
class OuterOptimizer {
 public:
  OuterOptimizer(const AveragingOptions& options, comm::Group ranks) : options_(options), ranks_(std::move(ranks)) {}

  void attach(const std::vector<bucket::FlatParameters*>& buffers);
  /// A round begins: what keep_start() gets from now on is where it begins.
  void begin_round();
  /// Takes the bucket's parameters, [n], before the first step of the round changes them; later calls of the round do
  /// nothing.
  void keep_start(int64_t buffer, int64_t bucket, const at::Tensor& parameters);
  bool has_start(int64_t buffer, int64_t bucket) const {
    return parts_[buffer][bucket].has_start;
  }
  /// This rank's part of a bucket's parameters.
  at::Tensor part_of(const at::Tensor& parameters) const;
  /// `part` holds the mean of the replicas; it becomes what the outer optimizer makes of it. `lr`: for slowmo; where it
  /// is 0 the mean stays.
  void step(int64_t buffer, int64_t bucket, at::Tensor part, double lr);
  /// Where the round has begun and the momentum, of this rank's part of a bucket; a replica that comes gets them from
  /// another one.
  std::vector<at::Tensor> values(int64_t buffer, int64_t bucket) const {
    return {parts_[buffer][bucket].start, parts_[buffer][bucket].momentum};
  }
  void take(int64_t buffer, int64_t bucket, const std::vector<at::Tensor>& values);
  /// Forgets all momentum.
  void reset();
  /// Of the momentum, as "outer_momentum".
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
