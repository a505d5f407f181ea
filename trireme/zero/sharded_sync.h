#pragma once

#include <trireme/parallel/data/gradient_sync.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::zero {

/// ZeRO: gradients are summed to shards, each rank steps its shard, and the stepped parameters travel while later buckets are stepped.
/// Parameters that are gathered where they are used (ParameterCoordinator) stay shards. Where gradients are sharded (stage 2), a bucket loses
/// its memory once it is reduced.
///
/// Cost for P bytes of gradients or parameters and N ranks: P(N-1)/N sent by each rank, for either.
/// Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 7.
class ShardedSync final : public parallel::AllReduceSync {
 public:
  using AllReduceSync::AllReduceSync;

  comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) override;
  void step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) override;
  bool end_step(bool taken) override;
  void finish() override;
  double exposed_seconds() const override {
    return exposed_;
  }

 private:
  std::vector<comm::Work> gathers_;
  double exposed_ = 0;
};

} // namespace trireme::zero
