#pragma once

#include <trireme/shards/bucket/extent.h>
#include <trireme/shards/bucket/flatten.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::device {
class Event;
}

namespace trireme::bucket {

/// An array of which every bucket of a flat buffer has a part: an optimizer state, the masters, or sharded parameters.
struct StoredArray {
  at::ScalarType type = at::kFloat;
  double initial = 0;
  /// Elements of each bucket's part.
  std::vector<int64_t> numel;
};

/// Where such arrays are between steps: in memory, on the host of a device, on a disk (memory/offload/disk_store.h). A
/// bucket's parts are used between acquire() and release(), and buckets are asked for one after the other, in an order
/// that prefetch() can tell ahead.
class StateStore {
 public:
  virtual ~StateStore() = default;
  /// Which buckets of a flat buffer on `device`, a GPU, acquire() gives in the host's memory; `numel`: the elements of
  /// each bucket's part. An optimizer steps such buckets on the host. Asked before add() of the same buffer. Empty:
  /// none.
  virtual std::vector<bool> on_host(const std::vector<int64_t>& numel, at::Device device);
  /// Elements of each array that a bucket should have at most, because the store's memory grows with its largest
  /// bucket. Who adds arrays cuts larger buckets into chunks (shards/bucket/chunks.h), each a bucket to the store. At
  /// least kChunkAlignment.
  virtual int64_t chunk_elements() const {
    return std::numeric_limits<int64_t>::max();
  }
  /// Adds the arrays of one more flat buffer (at least one), filled with their initial values, and returns its number.
  /// acquire() gives them on `device`, those of buckets on_host() there.
  virtual int64_t add(const std::vector<StoredArray>& arrays, at::Device device) = 0;
  /// The bucket's part of each array, flat and contiguous, to be read and written until release().
  virtual const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) = 0;
  /// Keeps what was written to the parts of an acquired bucket; not `modified`: nothing was. While a caller still holds
  /// a tensor of the part, its memory must not be used again.
  virtual void release(int64_t buffer, int64_t bucket, bool modified) = 0;
  /// Says that acquire() of this bucket is near.
  virtual void prefetch(int64_t buffer, int64_t bucket) = 0;
  /// How many of the next buckets it has memory for while one is used and one is written; at least 1.
  virtual int64_t ahead() const {
    return 1;
  }
  /// Says that nobody needs what the bucket has: the next acquire() gives what is cheapest, until it is written.
  virtual void forget(int64_t /*buffer*/, int64_t /*bucket*/) {}
  /// The first parameter of each bucket, for messages.
  virtual void name_buckets(int64_t /*buffer*/, std::vector<std::string> /*first_parameters*/) {}
  /// Where in a file array number `array` of a bucket that is not acquired lies, whole and written, byte for byte as
  /// acquire() would give it; nullopt: nowhere. A file that is opened by this name and read must give these bytes until
  /// the bucket is acquired again. Checkpoints then share its blocks instead of copying them, where the file system can
  /// and the offset is a multiple of its blocks (4096 bytes, mostly); what the store writes later goes elsewhere on the
  /// disk.
  virtual std::optional<Extent> extent(int64_t buffer, int64_t bucket, int64_t array) {
    (void)buffer, (void)bucket, (void)array;
    return std::nullopt;
  }
  /// Says that a device reads, or writes, the parts of a bucket, which are on its host, until `done`. Returns whether
  /// the store lets their memory be until then, longer than they are acquired, unless somebody acquires them to change
  /// them, and whether release() of what was modified waits for it where it has to: then some buckets may be acquired
  /// at a time. Else the caller holds tensors of them for so long, and releases what is written after it.
  virtual bool keep_until(int64_t buffer, int64_t bucket, std::shared_ptr<const device::Event> done);
  /// Calls `f` with the parts of a bucket between acquire() and release(), which also follows if `f` throws.
  void use(int64_t buffer, int64_t bucket, bool modifies, const std::function<void(const std::vector<at::Tensor>&)>& f);
};

/// A store whose arrays have memory at all times: what make() gives is what acquire() gives.
class KeptStore : public StateStore {
 public:
  int64_t add(const std::vector<StoredArray>& arrays, at::Device device) final;
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) final;
  void release(int64_t, int64_t, bool) final {}
  void prefetch(int64_t, int64_t) final {}
  bool keep_until(int64_t, int64_t, std::shared_ptr<const device::Event>) final {
    return true;
  }

 protected:
  using Buckets = std::vector<std::vector<at::Tensor>>; // the parts of each
  /// The arrays' parts, with their initial values.
  virtual Buckets make(const std::vector<StoredArray>& arrays, at::Device device) = 0;

 private:
  std::vector<Buckets> buffers_;
};

/// Keeps all of it on the device: each array in one piece, so that acquire() costs nothing.
std::unique_ptr<StateStore> make_memory_store(AllocateOn allocate);

} // namespace trireme::bucket
