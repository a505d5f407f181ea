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

/// Parameters of which only this rank's shard stays (ZeRO stage 3): a unit's bucket has memory from memory() to
/// release(), and its parameters show it from publish() on. Buckets of no unit are always whole.
///
/// Parameters are views on one storage for each bucket. Releasing takes the memory away from the storage and publishing
/// gives it memory again, so that everything that views it, autograd's saved tensors included, sees the values again.
/// Who reads a parameter meanwhile, also while its values are on their way, gets c10::Error with a sentence that names
/// it. Memory: numel / ranks, where the store has its arrays; buckets of no unit, and what is gathered.
class ParameterShards {
 public:
  /// `layout` and `plan` must outlive it. The shards are one array of `store`.
  ParameterShards(const FlatLayout& layout, const ShardPlan& plan, at::ScalarType type, at::Device device,
                  std::shared_ptr<StateStore> store, std::shared_ptr<MemoryPool> pool);
  ~ParameterShards();
  ParameterShards(const ParameterShards&) = delete;
  ParameterShards& operator=(const ParameterShards&) = delete;

  /// Whether the bucket has memory for all its elements now.
  bool is_gathered(int64_t b) const {
    return whole_[b].defined();
  }
  /// Whether it always has.
  bool is_replicated(int64_t b) const {
    return layout_.buckets()[b].unit == TensorInfo::kNoUnit;
  }
  /// The bucket's memory, [bucket numel]; taken, uninitialised, when there is none.
  at::Tensor memory(int64_t b);
  /// Lets the parameters show the bucket's memory.
  void publish(int64_t b);
  /// Of a bucket that has no memory and of which this rank has all: lets the parameters show `part`, its part, itself.
  /// Nothing is copied, and until release() the store keeps that memory.
  void show_part(int64_t b, const at::Tensor& part);
  /// Gives what show_part() shows memory of its own: what is changed there does not change the part.
  void detach_part(int64_t b);
  /// Tensor `tensor` of the layout as a view on its bucket.
  at::Tensor view(int64_t tensor);
  /// Makes this rank's part of the whole bucket what stays.
  void update(int64_t b);
  /// Whether this parameter, number `tensor` of the layout, is a view of its bucket's memory, there or not.
  bool has(int64_t tensor, const at::Tensor& parameter) const {
    return parameter.storage().unsafeGetStorageImpl() == storages_[layout_.bucket_of(tensor)].unsafeGetStorageImpl();
  }
  /// Gives the bucket's memory back; not of buckets that stay whole.
  void release(int64_t b);
  /// Whether this rank's part of the bucket is in the host's memory, of a device.
  bool keeps_on_host(int64_t b) const {
    return !is_replicated(b) && on_host_[b];
  }
  /// The stream on which parts come from the host: one of the device for all shards, since an allocator keeps freed
  /// memory for the stream that it was taken on.
  c10::Stream coming_stream() const;
  /// Copies this rank's part of the bucket, which is on the host, to `to` on the device, on the current stream. Its
  /// values stay as they are until they have been read.
  void copy_to_device(int64_t b, const at::Tensor& to);
  /// Calls f with this rank's parameters of bucket `b`, or the part of them that is `range` of the flat buffer. Who
  /// only reads them may hold them longer.
  void with_owned(int64_t b, const Range& range, bool modifies, const std::function<void(const at::Tensor&)>& f);
  /// The same on the device, also of a part on the host: f gets a copy, which comes on a stream of its own while
  /// earlier work runs, and, if f `modifies` it, goes back on another one while later work runs. The host waits for
  /// nothing but the store. Memory of the device: that of three buckets' parts, until parts are used otherwise.
  void with_owned_on_device(int64_t b, const Range& range, bool modifies,
                            const std::function<void(const at::Tensor&)>& f);
  /// Says that with_owned() of a sharded bucket is near.
  void prefetch(int64_t b);
  /// Where this rank's parameters of a sharded bucket lie in a file (StateStore::extent).
  std::optional<Extent> extent(int64_t b);

 private:
  // Of a part on the host, by the device: the last one.
  struct Use {
    std::shared_ptr<const device::Event> done;
    at::Tensor part; // undefined: the store knows of it
    bool writes;     // or a use before it does, which may not be done
  };
  // An acquired part and its copy on the device.
  struct Stepped {
    int64_t b;
    at::Tensor copy;
    std::shared_ptr<const device::Event> done; // with the copy, and with bringing it back
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
  std::deque<Stepped> stepped_;        // the oldest first
  int64_t in_store_;                   // our number there
  std::vector<at::Tensor> whole_;      // by bucket, perhaps longer than it
  std::vector<bool> is_part_;          // whole_ is this rank's part, in the memory of the store
  std::vector<c10::Storage> storages_; // by bucket
};

} // namespace trireme::bucket
