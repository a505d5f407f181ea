#pragma once

#include <trireme/shards/data_parallel/gradient_sync.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::zero {

/// ZeRO: reduce-scatters gradients, steps each rank's shard, and all-gathers stepped parameters while later buckets are
/// stepped. Parameters that ParameterCoordinator gathers before use stay sharded. With sharded gradients (stage 2) a
/// bucket frees its memory once it is reduced.
///
/// Cost for P bytes of gradients or parameters and N ranks: each rank sends P(N-1)/N for either. Source: Rajbhandari et
/// al. 2020, arXiv:1910.02054, section 7.
///
/// Hybrid sharding (ReduceGroups::shard_within): S ranks hold one copy, and R = N/S ranks hold each shard. Gradients
/// are reduce-scattered among the S. In the last backward of a step each shard is all-reduced among its R, bucket by
/// bucket while later ones are reduced. Parameters are gathered among the S only. Cost: P(S-1)/S for either, plus
/// 2(P/S)(R-1)/R once per step between copies. Source: Zhang et al. 2022, arXiv:2205.00119.
class ShardedSync final : public parallel::AllReduceSync, public parallel::StepExchange {
 public:
  using AllReduceSync::AllReduceSync;

  void backward_begins(bool last) override { last_ = last; }
  comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) override;
  void backward_ended() override;

  parallel::StepExchange& step_exchange() override { return *this; }
  void step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) override;
  bool end_step(bool taken) override;
  bool end_step_differs() const override { return false; }
  void finish() override;
  double exposed_seconds() const override { return exposed_; }

 private:
  // A bucket that is being reduced to its shards, and then among the ranks with the same shard.
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
  std::vector<std::shared_ptr<Shard>> reducing_; // in the order in which all ranks continue
  std::vector<comm::Work> gathers_;
  double exposed_ = 0;
};

} // namespace trireme::zero
