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

/// Gradients of which only this rank's shard stays (ZeRO stages 2 and 3): a bucket has memory from its first gradient
/// until it has been reduced and accumulate() has taken its shard out of it.
///
/// Memory: numel / ranks from the first accumulate() on, where the store has it, less what is added up on the host, and
/// the buckets under way; their memory is used again by later ones. In a store they are cut into its chunks.
class GradientShards {
 public:
  /// `layout` and `plan` must outlive it. The shards are an array of `store`; null: in one piece of memory by
  /// `allocate`.
  GradientShards(const FlatLayout& layout, const ShardPlan& plan, at::ScalarType type, Allocate allocate,
                 std::shared_ptr<MemoryPool> pool, std::shared_ptr<StateStore> store, at::Device device);

  /// Buckets that it has are added up there: before the first accumulate(). It must outlive this object.
  void add_up_in(HostGradients& host) {
    host_ = &host;
  }
  /// The bucket's memory, [bucket numel], gaps zero; taken when there is none yet.
  at::Tensor bucket(int64_t b);
  /// Adds this rank's slice of the reduced bucket to what it has of this step, and gives the memory back.
  void accumulate(int64_t b);
  /// This rank's gradients of bucket `b`, or the part of them that is `range` of the flat buffer; of a store, to be
  /// read: a copy if they lie in several chunks. Not of buckets that are added up on the host.
  at::Tensor owned(int64_t b, const Range& range) const;
  /// The end of the chunk of bucket `b` that has element `at` of the flat buffer: owned() copies nothing up to it.
  int64_t chunk_end(int64_t b, int64_t at) const;
  /// A new step begins: what was there does not count any more.
  void start_over();
  /// Says that owned() of this bucket is near.
  void prefetch(int64_t b);

 private:
  struct Chunk {
    int64_t bucket = 0;
    Range range;
  };
  void take_memory();
  void prefetch_chunk(int64_t chunk);
  bool on_host(int64_t b) const {
    return host_ != nullptr && host_->has(b);
  }

  const FlatLayout& layout_;
  const ShardPlan& plan_;
  at::ScalarType type_;
  Allocate allocate_;
  std::shared_ptr<MemoryPool> pool_;
  HostGradients* host_ = nullptr;
  std::shared_ptr<StateStore> store_;
  int64_t in_store_ = -1;       // our number there
  at::Tensor shard_;            // bucket after bucket; undefined: the store has it
  std::vector<int64_t> offset_; // of each bucket in it
  std::vector<Chunk> chunks_;   // in the store, by their number there
  std::vector<int64_t> first_;  // chunk of each bucket, and the end
  std::vector<bool> begun_;
  std::vector<at::Tensor> under_way_; // by bucket, perhaps longer than it
};

/// Sets the gaps between the slots of a bucket's memory ([bucket numel]) to zero.
void clear_gaps(const FlatLayout& layout, int64_t bucket, const at::Tensor& memory);

} // namespace trireme::bucket
