#pragma once

#include <trireme/parallel/data/gradient_sync.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::zero {

/// ZeRO: gradients are summed to shards, each rank steps its shard, and the stepped parameters travel while later
/// buckets are stepped. Parameters that are gathered where they are used (ParameterCoordinator) stay shards. Where
/// gradients are sharded (stage 2), a bucket loses its memory once it is reduced.
///
/// Cost for P bytes of gradients or parameters and N ranks: P(N-1)/N sent by each rank, for either.
/// Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 7.
///
/// With hybrid sharding (ReduceGroups::shard_within) S ranks hold one copy, and R = N/S have each shard: gradients are
/// summed to shards among the S, and in the last backward of a step each shard is summed among its R, bucket by bucket
/// while the next ones are reduced. Parameters travel among the S only. Cost: P(S-1)/S for either, and 2(P/S)(R-1)/R,
/// once a step, between copies. Source: Zhang et al. 2022, arXiv:2205.00119.
class ShardedSync final : public parallel::AllReduceSync, public parallel::StepExchange {
 public:
  using AllReduceSync::AllReduceSync;

  void backward_begins(bool last) override {
    last_ = last;
  }
  comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) override;
  void backward_ended() override;

  parallel::StepExchange& step_exchange() override {
    return *this;
  }
  void step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) override;
  bool end_step(bool taken) override;
  void finish() override;
  double exposed_seconds() const override {
    return exposed_;
  }

 private:
  // A bucket on its way to its shards, and then among those that have the same shard.
  struct Shard {
    bucket::FlatParameters* buffer;
    int64_t bucket;
    comm::Work reduced;
    comm::Work between;
  };

  void send_between();
  static comm::Work sum_between(const comm::Group& replicas, bucket::FlatParameters& buffer, int64_t bucket,
                                at::ScalarType travel);

  bool last_ = true;
  std::vector<std::shared_ptr<Shard>> reducing_; // in the order in which all ranks go on
  std::vector<comm::Work> gathers_;
  double exposed_ = 0;
};

} // namespace trireme::zero
