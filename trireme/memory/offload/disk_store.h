#pragma once

#include <trireme/device/host_buffer.h>
#include <trireme/memory/aio/file.h>
#include <trireme/memory/aio/transfers.h>
#include <trireme/memory/offload/disk_plan.h>
#include <trireme/memory/offload/options.h>
#include <trireme/memory/offload/rank_folder.h>
#include <trireme/memory/offload/traffic.h>
#include <trireme/shards/bucket/state_store.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::offload {

struct DiskOptions {
  /// Content, for messages and file names: "optimizer states".
  std::string kind = {};
  /// Buckets that have memory at a time; at least 3.
  int64_t buffers = 4;
  /// prefetch() reads while the caller goes on; else it does nothing.
  bool pipeline_read = true;
  /// Writes while the caller goes on; else release() waits until the bucket is written.
  bool pipeline_write = true;
  /// A bucket that was never written reads as its initial value. Else add() writes all of them once.
  bool fast_init = false;
  /// Elements that stay in memory: the first buckets.
  int64_t elements_in_memory = 0;
  /// Returned by chunk_elements().
  int64_t chunk_elements = kChunkElements;
  /// Buffers on a device: uses memory from which the device copies asynchronously.
  bool pin_memory = false;
  aio::Options aio = {};
};

/// Keeps arrays in files of this rank: one per flat buffer, unlinked as soon as it is open, so that nothing of it
/// survives the process.
///
/// An LRU cache of `buffers` buffers with the sizes of the `buffers` largest buckets, so that any `buffers` buckets fit
/// at a time. A bucket is written after each release() that modified it. With pipeline_read and pipeline_write bucket
/// k+1 is read and k-1 written while k is used. On a miss, the least recently used buffer that is large enough, and not
/// prefetched, is evicted; one of similar size is preferred. With 3 buffers that are all written, smaller buckets need
/// the largest buffer too: such a bucket is read only when it is used.
///
/// While a caller holds tensors of a released bucket, its buffer is not reused; if no other is left, an extra one is
/// allocated for that time. The host waits for a buffer that a device still uses (keep_until()) before the buffer is
/// reused or written to the file.
///
/// A checksum of every written bucket is kept in memory and compared when it is read: data that the disk changed raise
/// an error.
///
/// Memory: the `buffers` largest buckets, and elements_in_memory. Bytes: each bucket as DiskPlan pads it, read if it is
/// not in memory, and written. Errors: Error with the file, the operation and the offset if a transfer failed. Data
/// that could not be written are lost, and acquire() of them throws. One thread at a time. Source of the scheme:
/// Rajbhandari et al. 2021, arXiv:2104.07857 (ZeRO-Infinity), section 6.
class DiskStore : public bucket::StateStore {
 public:
  DiskStore(std::shared_ptr<RankFolder> folder, DiskOptions options, std::shared_ptr<Traffic> traffic);
  ~DiskStore() override;

  /// All buckets: files are read into host memory.
  std::vector<bool> on_host(const std::vector<int64_t>& numel, at::Device device) override;
  int64_t chunk_elements() const override { return options_.chunk_elements; }
  /// Errors: Error if the disk is full: the file's full size is reserved now.
  int64_t add(const std::vector<bucket::StoredArray>& arrays, at::Device device) override;
  void name_buckets(int64_t buffer, std::vector<std::string> first_parameters) override;
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override;
  void release(int64_t buffer, int64_t bucket, bool modified) override;
  void prefetch(int64_t buffer, int64_t bucket) override;
  /// All buffers but the one in use, the one being written and, if one bucket is much larger than the others, the one
  /// for it.
  int64_t ahead() const override;
  void forget(int64_t buffer, int64_t bucket) override;
  bool keep_until(int64_t buffer, int64_t bucket, std::shared_ptr<const device::Event> done) override;

  /// Its name is that of an open file of this process. Unlike acquire(), it returns data that were not compared with
  /// their checksum: a checkpoint that shares them compares.
  std::optional<bucket::Extent> extent(int64_t buffer, int64_t bucket, int64_t array) override;

  /// Bytes of memory that buckets have now, without those that always stay in memory.
  int64_t buffer_bytes() const;

 private:
  struct Bucket {
    bool is_written = false;
    bool is_lost = false;
    uint64_t checksum = 0;
    std::vector<at::Tensor> in_memory = {}; // if it is not in the file
  };
  struct Buffer {
    std::vector<bucket::StoredArray> arrays;
    DiskPlan plan;
    std::optional<aio::File> file; // absent: all of it is in memory
    std::vector<Bucket> buckets;
    std::vector<std::string> names;
  };
  // A buffer of the cache, and its transfer.
  struct Slot {
    enum class State { idle, reading, writing };
    device::HostBuffer memory; // a device reads or writes it until it is idle
    bool is_extra = false;     // beyond `buffers`: freed when it is idle
    bool is_registered = false;
    int64_t buffer = -1; // of the bucket in it; -1: empty
    int64_t bucket = -1;
    State state = State::idle;
    aio::Transfers::Id transfer = 0;
    int uses = 0; // acquire() without release()
    bool is_modified = false;
    bool is_promised = false; // prefetched, and not used since
    uint64_t last_use = 0;
    std::vector<at::Tensor> parts = {};
  };

  Slot* find(int64_t buffer, int64_t bucket);
  void add_sizes(const DiskPlan& plan);
  Slot* take(int64_t bytes, bool must);
  int64_t size_of(size_t slot) const;
  void load(Slot& slot, int64_t buffer, int64_t bucket);
  void store(Slot& slot);
  void finish(Slot& slot);
  void check(const Slot& slot);
  static void fill(const Buffer& buffer, const std::vector<at::Tensor>& parts);
  static std::vector<at::Tensor> parts_of(const device::HostBuffer& memory, const Buffer& buffer, int64_t bucket);
  void write_initial_values(Buffer& buffer);
  void give_memory(Slot& slot, int64_t bytes);
  void drop_extra_slots();
  std::string describe(int64_t buffer, int64_t bucket) const;

  std::shared_ptr<RankFolder> folder_;
  DiskOptions options_;
  const char* kind_; // for the hang report's notes
  std::shared_ptr<Traffic> traffic_;
  std::vector<Buffer> buffers_;
  std::vector<int64_t> sizes_;               // of the largest buckets, largest first
  std::vector<std::unique_ptr<Slot>> slots_; // one per entry of sizes_, allocated at first use; extra ones follow
  aio::Transfers transfers_;                 // its destructor waits for transfers of the members above
  int64_t left_in_memory_;                   // elements
  at::DeviceType pinned_for_ = at::kCPU;
  uint64_t uses_ = 0;
};

} // namespace trireme::offload
