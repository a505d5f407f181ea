#pragma once

#include <trireme/shards/bucket/host_gradients.h>
#include <trireme/shards/bucket/memory_pool.h>
#include <trireme/shards/bucket/shard_plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::bucket {

class StateStore;

/// Gradients of which each rank keeps only its shard (ZeRO stages 2 and 3). A bucket has memory from its first gradient
/// until it has been reduced and accumulate() has taken this rank's shard.
///
/// Memory: numel / ranks from the first accumulate() on, in the store if there is one, less what is summed on the host;
/// and the buckets in use, whose memory later ones reuse. In a store, shards are cut into its chunks.
class GradientShards {
 public:
  /// `layout` and `plan` must outlive it. The shards are an array of `store`; null: one tensor from `allocate`.
  GradientShards(const FlatLayout& layout, const ShardPlan& plan, at::ScalarType type, Allocate allocate,
                 std::shared_ptr<MemoryPool> pool, std::shared_ptr<StateStore> store, at::Device device);

  /// Sums the buckets that `host` has on the host. Call it before the first accumulate(); `host` must outlive this
  /// object.
  void add_up_in(HostGradients& host) { host_ = &host; }
  /// The bucket's memory, [bucket numel], gaps zero; allocated on first use.
  at::Tensor bucket(int64_t b);
  /// Adds this rank's slice of the reduced bucket to its sum of this step, and releases the bucket's memory.
  void accumulate(int64_t b);
  /// This rank's gradients of bucket `b`, or the part of them in `range` of the flat buffer. From a store: read-only,
  /// a copy if they lie in several chunks. Not for buckets that are summed on the host.
  at::Tensor owned(int64_t b, const Range& range) const;
  /// The end of the chunk of bucket `b` that has element `at` of the flat buffer. owned() copies nothing up to it.
  int64_t chunk_end(int64_t b, int64_t at) const;
  /// Starts a new step: earlier sums are dropped.
  void start_over();
  /// Prefetches what owned() of this bucket needs.
  void prefetch(int64_t b);

 private:
  struct Chunk {
    int64_t bucket = 0;
    Range range;
  };
  void take_memory();
  void prefetch_chunk(int64_t chunk);
  bool on_host(int64_t b) const { return host_ != nullptr && host_->has(b); }

  const FlatLayout& layout_;
  const ShardPlan& plan_;
  at::ScalarType type_;
  Allocate allocate_;
  std::shared_ptr<MemoryPool> pool_;
  HostGradients* host_ = nullptr;
  std::shared_ptr<StateStore> store_;
  int64_t in_store_ = -1;       // our buffer number in the store
  at::Tensor shard_;            // one bucket after another; undefined: the store has it
  std::vector<int64_t> offset_; // of each bucket in shard_
  std::vector<Chunk> chunks_;   // by chunk number in the store
  std::vector<int64_t> first_;  // each bucket's first chunk, and the end
  std::vector<bool> begun_;
  std::vector<at::Tensor> under_way_; // by bucket; may be longer than it
};

/// Sets the gaps between the slots of a bucket's memory ([bucket numel]) to zero.
void clear_gaps(const FlatLayout& layout, int64_t bucket, const at::Tensor& memory);

} // namespace trireme::bucket
