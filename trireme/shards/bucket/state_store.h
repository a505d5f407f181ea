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

/// An array with a part for every bucket of a flat buffer: an optimizer state, the masters, or sharded parameters.
struct StoredArray {
  at::ScalarType type = at::kFloat;
  double initial = 0;
  /// Elements of each bucket's part.
  std::vector<int64_t> numel;
};

/// Keeps such arrays between steps: in memory, on the host of a device, on a disk (memory/offload/disk_store.h). A
/// bucket's parts are used between acquire() and release(). Buckets are acquired one after another, in an order that
/// prefetch() announces.
class StateStore {
 public:
  virtual ~StateStore() = default;
  /// Which buckets of a flat buffer on `device`, a GPU, acquire() returns in host memory; the optimizer steps them on
  /// the host. `numel`: the elements of each bucket's part. Called before add() of the same buffer. Empty: none.
  virtual std::vector<bool> on_host(const std::vector<int64_t>& numel, at::Device device);
  /// The largest number of elements per array that a bucket should have, because the store's memory grows with its
  /// largest bucket. Callers of add() cut larger buckets into chunks (shards/bucket/chunks.h), each a bucket to the
  /// store. At least kChunkAlignment.
  virtual int64_t chunk_elements() const { return std::numeric_limits<int64_t>::max(); }
  /// Adds the arrays of another flat buffer (at least one), filled with their initial values, and returns its number.
  /// acquire() returns them on `device`, those of buckets in on_host() on the host.
  virtual int64_t add(const std::vector<StoredArray>& arrays, at::Device device) = 0;
  /// The bucket's part of each array, flat and contiguous, for reading and writing until release().
  virtual const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) = 0;
  /// Ends the use of an acquired bucket and keeps what was written to it; not `modified`: nothing was. While a caller
  /// holds a tensor of the part, its memory must not be reused.
  virtual void release(int64_t buffer, int64_t bucket, bool modified) = 0;
  /// Announces acquire() of this bucket.
  virtual void prefetch(int64_t buffer, int64_t bucket) = 0;
  /// Number of next buckets that it has memory for while one is used and one is written; at least 1.
  virtual int64_t ahead() const { return 1; }
  /// Drops the bucket's values: until it is written, acquire() returns what is cheapest.
  virtual void forget(int64_t /*buffer*/, int64_t /*bucket*/) {}
  /// The first parameter of each bucket, for messages.
  virtual void name_buckets(int64_t /*buffer*/, std::vector<std::string> /*first_parameters*/) {}
  /// The file range of array number `array` of a bucket that is not acquired, complete and byte for byte as acquire()
  /// would return it; nullopt: it is in no file. The file, opened by this name, must give these bytes until the bucket
  /// is acquired again. Checkpoints then share its blocks instead of copying them. The file system must support it, and
  /// the offset must be a multiple of its blocks (mostly 4096 bytes). What the store writes later goes to other blocks.
  virtual std::optional<Extent> extent(int64_t buffer, int64_t bucket, int64_t array) {
    (void)buffer, (void)bucket, (void)array;
    return std::nullopt;
  }
  /// Announces that a device reads or writes the parts of a bucket on its host until `done`. True: they stay valid
  /// after release() until then, unless the bucket is acquired for writing. If it was modified, release() waits for
  /// `done` where necessary, so several buckets may be acquired at a time. False: the caller holds tensors of the parts
  /// until `done`, and releases written ones after it.
  virtual bool keep_until(int64_t buffer, int64_t bucket, std::shared_ptr<const device::Event> done);
  /// Calls `f` with the parts of a bucket between acquire() and release(), which is called even if `f` throws.
  void use(int64_t buffer, int64_t bucket, bool modifies, const std::function<void(const std::vector<at::Tensor>&)>& f);
};

/// A store whose arrays always have memory: acquire() returns what make() made.
class KeptStore : public StateStore {
 public:
  int64_t add(const std::vector<StoredArray>& arrays, at::Device device) final;
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) final;
  void release(int64_t, int64_t, bool) final {}
  void prefetch(int64_t, int64_t) final {}
  bool keep_until(int64_t, int64_t, std::shared_ptr<const device::Event>) final { return true; }

 protected:
  using Buckets = std::vector<std::vector<at::Tensor>>; // the parts of each bucket
  /// Allocates the arrays' parts with their initial values.
  virtual Buckets make(const std::vector<StoredArray>& arrays, at::Device device) = 0;

 private:
  std::vector<Buckets> buffers_;
};

/// Keeps everything on the device, each array as one tensor, so that acquire() costs nothing. `allocate` returns zeros;
/// arrays that begin with them are not written before their first use.
std::unique_ptr<StateStore> make_memory_store(AllocateOn allocate);

} // namespace trireme::bucket
