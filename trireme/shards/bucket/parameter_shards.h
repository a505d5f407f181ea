#pragma once

#include <trireme/device/stream.h>
#include <trireme/shards/bucket/extent.h>
#include <trireme/shards/bucket/memory_pool.h>
#include <trireme/shards/bucket/shard_plan.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::bucket {

class StateStore;

/// Parameters of which each rank keeps only its shard (ZeRO stage 3). A unit's bucket has memory from memory() to
/// release(), and its parameters are views of it after publish(). Buckets of no unit are always complete.
///
/// Parameters of a bucket are views of one storage. release() frees the storage's memory and publish() allocates it
/// again, so every view, autograd's saved tensors included, sees the values again. Reading a parameter before
/// publish(), also while its values are being gathered, throws a c10::Error that names it. Memory: numel / ranks in the
/// store, the buckets of no unit, and what is gathered.
class ParameterShards {
 public:
  /// `layout` and `plan` must outlive it. The shards are one array of `store`.
  ParameterShards(const FlatLayout& layout, const ShardPlan& plan, at::ScalarType type, at::Device device,
                  std::shared_ptr<StateStore> store, std::shared_ptr<MemoryPool> pool);
  ~ParameterShards();
  ParameterShards(const ParameterShards&) = delete;
  ParameterShards& operator=(const ParameterShards&) = delete;

  /// Whether the bucket has memory for all its elements now.
  bool is_gathered(int64_t b) const { return whole_[b].defined(); }
  /// Whether it always has memory for all its elements.
  bool is_replicated(int64_t b) const { return layout_.buckets()[b].unit == TensorInfo::kNoUnit; }
  /// The bucket's memory, [bucket numel]; allocated, uninitialised, if there is none.
  at::Tensor memory(int64_t b);
  /// Makes the parameters views of the bucket's memory.
  void publish(int64_t b);
  /// For a bucket that has no memory and that this rank owns in full: makes the parameters views of `part`, its part.
  /// Nothing is copied, and the store keeps that memory until release().
  void show_part(int64_t b, const at::Tensor& part);
  /// Gives the parameters of show_part() their own memory: changes to it do not change the part.
  void detach_part(int64_t b);
  /// Tensor `tensor` of the layout as a view of its bucket.
  at::Tensor view(int64_t tensor);
  /// Copies this rank's part of the complete bucket to its shard.
  void update(int64_t b);
  /// Whether this parameter, number `tensor` of the layout, is a view of its bucket's storage, with or without memory.
  bool has(int64_t tensor, const at::Tensor& parameter) const {
    return parameter.storage().unsafeGetStorageImpl() == storages_[layout_.bucket_of(tensor)].unsafeGetStorageImpl();
  }
  /// Frees the bucket's memory; not for buckets of no unit.
  void release(int64_t b);
  /// Whether this rank's part of the bucket is in host memory although the parameters are on a device.
  bool keeps_on_host(int64_t b) const { return !is_replicated(b) && on_host_[b]; }
  /// The stream on which parts are copied from the host. All shards of a device share it, because an allocator keeps
  /// freed memory for the stream that it was allocated on.
  c10::Stream coming_stream() const;
  /// Copies this rank's part of the bucket from the host to `to` on the device, on the current stream. The part is not
  /// changed before it has been read.
  void copy_to_device(int64_t b, const at::Tensor& to);
  /// Calls f with this rank's parameters of bucket `b`, or the part of them in `range` of the flat buffer. A reader may
  /// hold them after the call.
  void with_owned(int64_t b, const Range& range, bool modifies, const std::function<void(const at::Tensor&)>& f);
  /// The same on the device, also for a part on the host: f gets a copy. It arrives on its own stream while earlier
  /// work runs and, if f `modifies` it, returns on another stream while later work runs. The host waits only for the
  /// store. Device memory: the parts of three buckets, until parts are used in another way.
  void with_owned_on_device(int64_t b, const Range& range, bool modifies,
                            const std::function<void(const at::Tensor&)>& f);
  /// Prefetches what with_owned() of a sharded bucket needs.
  void prefetch(int64_t b);
  /// The file range of this rank's parameters of a sharded bucket (StateStore::extent).
  std::optional<Extent> extent(int64_t b);

 private:
  // The device's last use of a part on the host.
  struct Use {
    std::shared_ptr<const device::Event> done;
    at::Tensor part; // undefined: the store knows about it
    bool writes;     // or an earlier use does, which may not be done
  };
  // An acquired part and its copy on the device.
  struct Stepped {
    int64_t b;
    at::Tensor copy;
    std::shared_ptr<const device::Event> done; // the copy to the device, and the copy back
    bool modified;
  };

  void empty_storage(int64_t b);
  void read(int64_t b, const at::Tensor& part, const at::Tensor& to);
  void note(int64_t b, const at::Tensor& part, std::shared_ptr<const device::Event> done, bool writes);
  void wait_on_host(int64_t b, bool modifies);
  void release_stepped(size_t left);

  const FlatLayout& layout_;
  const ShardPlan& plan_;
  at::ScalarType type_;
  at::Device device_;
  std::shared_ptr<MemoryPool> pool_;
  std::shared_ptr<StateStore> store_;
  std::vector<bool> on_host_;
  std::map<int64_t, Use> uses_;        // by bucket
  std::deque<Stepped> stepped_;        // oldest first
  int64_t in_store_;                   // our buffer number in the store
  std::vector<at::Tensor> whole_;      // by bucket; may be longer than it
  std::vector<bool> is_part_;          // whole_ is this rank's part, in the store's memory
  std::vector<c10::Storage> storages_; // by bucket
};

} // namespace trireme::bucket
