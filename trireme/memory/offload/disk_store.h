#pragma once

#include <trireme/device/stream.h>
#include <trireme/memory/aio/file.h>
#include <trireme/memory/aio/transfers.h>
#include <trireme/memory/offload/disk_plan.h>
#include <trireme/memory/offload/host_buffer.h>
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
  /// What is kept, in messages and in the files' names: "optimizer states".
  std::string kind = {};
  /// Buckets that have memory at a time; at least 3.
  int64_t buffers = 4;
  /// Reads what prefetch() names while the caller goes on; else prefetch() does nothing.
  bool pipeline_read = true;
  /// Writes while the caller goes on; else release() waits until the bucket is written.
  bool pipeline_write = true;
  /// What was never written is read as its initial value. Else all of it is written once, by add().
  bool fast_init = false;
  /// Elements that stay in memory: those of the first buckets.
  int64_t elements_in_memory = 0;
  /// What chunk_elements() says.
  int64_t chunk_elements = kChunkElements;
  /// Memory from which a device copies by itself, for buffers on one.
  bool pin_memory = false;
  aio::Options aio = {};
};

/// Keeps arrays in files of this rank: one for each flat buffer, whose name is gone as soon as it is open, so that
/// nothing of it survives the process.
///
/// A bucket is read into one of `buffers` pieces of memory, which have the sizes of the largest buckets: the first that
/// of the largest, the second that of the next. So any `buffers` buckets can have memory together, whichever they are.
/// It is written after each release() that modified it. With pipeline_read and pipeline_write bucket k+1 is read and
/// k-1 written while k is used. Memory keeps its values until it is taken for another bucket that it is large enough
/// for, and not much too large where there is other: that whose use is longest ago and which prefetch() has not named:
/// what comes again soon is not read again. With 3 pieces smaller buckets need that of the largest too, where each is
/// written: it is then read when it is used. While a caller holds tensors of a released bucket, its memory stays
/// theirs; if none is left, there is more for that time. Memory that a device still uses (keep_until()) is waited for,
/// by the host, when it is to be used again, and before it is written to the file.
///
/// A sum of every bucket that was written is kept here and compared when it is read: what the disk changed is an error,
/// not a wrong model.
///
/// Memory: the `buffers` largest buckets, and elements_in_memory. Bytes: each bucket as DiskPlan fills it up, read when
/// it is not in memory any more, and written. Errors: Error with the file, the operation and the place where a transfer
/// failed. What was to be written then is lost, and acquire() of it says so. One thread at a time. Source of the
/// scheme: Rajbhandari et al. 2021, arXiv:2104.07857 (ZeRO-Infinity), section 6.
class DiskStore : public bucket::StateStore {
 public:
  DiskStore(std::shared_ptr<RankFolder> folder, DiskOptions options, std::shared_ptr<Traffic> traffic);
  ~DiskStore() override;

  /// All of them: files are read into the host's memory.
  std::vector<bool> on_host(const std::vector<int64_t>& numel, at::Device device) override;
  int64_t chunk_elements() const override {
    return options_.chunk_elements;
  }
  /// Errors: Error where the disk is full: the whole file is reserved now.
  int64_t add(const std::vector<bucket::StoredArray>& arrays, at::Device device) override;
  void name_buckets(int64_t buffer, std::vector<std::string> first_parameters) override;
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override;
  void release(int64_t buffer, int64_t bucket, bool modified) override;
  void prefetch(int64_t buffer, int64_t bucket) override;
  /// All buffers but the one that is used, the one that is written, and, where one bucket is much larger than all
  /// others, the one that is for it.
  int64_t ahead() const override;
  void forget(int64_t buffer, int64_t bucket) override;
  bool keep_until(int64_t buffer, int64_t bucket, std::shared_ptr<const device::Event> done) override;

  /// Its name is one of this process's open files. What it has is as the disk gives it: compared with nothing, unlike
  /// what acquire() gives; who shares it compares the two.
  std::optional<bucket::Extent> extent(int64_t buffer, int64_t bucket, int64_t array) override;

  /// Bytes of memory that buckets have now, without those that stay in memory.
  int64_t buffer_bytes() const;

 private:
  struct Bucket {
    bool is_written = false;
    bool is_lost = false;
    uint64_t checksum = 0;
    std::vector<at::Tensor> in_memory = {}; // if it has no place in the file
  };
  struct Buffer {
    std::vector<bucket::StoredArray> arrays;
    DiskPlan plan;
    std::optional<aio::File> file; // absent: all of it is in memory
    std::vector<Bucket> buckets;
    std::vector<std::string> names;
  };
  // Memory for a bucket, and what is going on with it.
  struct Slot {
    enum class State { idle, reading, writing };
    HostBuffer memory{0};
    bool is_extra = false; // beyond `buffers`: there until it is free
    bool is_registered = false;
    int64_t buffer = -1; // what it has; -1: nothing
    int64_t bucket = -1;
    State state = State::idle;
    aio::Transfers::Id transfer = 0;
    int uses = 0; // acquire() without release()
    bool is_modified = false;
    bool is_promised = false; // prefetched, and not used since
    uint64_t last_use = 0;
    std::shared_ptr<const device::Event> used = nullptr; // a device reads or writes it until then
    std::vector<at::Tensor> parts = {};
  };

  Slot* find(int64_t buffer, int64_t bucket);
  void add_sizes(const DiskPlan& plan);
  Slot* take(int64_t bytes, bool must);
  int64_t size_of(size_t slot) const;
  void load(Slot& slot, int64_t buffer, int64_t bucket);
  void store(Slot& slot);
  void finish(Slot& slot);
  static void wait_for_device(Slot& slot);
  void check(const Slot& slot);
  static void fill(const Buffer& buffer, const std::vector<at::Tensor>& parts);
  static std::vector<at::Tensor> parts_of(const HostBuffer& memory, const Buffer& buffer, int64_t bucket);
  void write_initial_values(Buffer& buffer);
  void give_memory(Slot& slot, int64_t bytes);
  void drop_extra_slots();
  std::string describe(int64_t buffer, int64_t bucket) const;

  std::shared_ptr<RankFolder> folder_;
  DiskOptions options_;
  const char* kind_; // for notes
  std::shared_ptr<Traffic> traffic_;
  std::vector<Buffer> buffers_;
  std::vector<int64_t> sizes_; // of the largest buckets, the largest first
  std::vector<std::unique_ptr<Slot>>
      slots_;                // one for each of sizes_, with memory as soon as it is used; behind them the extra ones
  aio::Transfers transfers_; // its end waits for transfers of what is above
  int64_t left_in_memory_;   // elements
  at::DeviceType pinned_for_ = at::kCPU;
  uint64_t uses_ = 0;
};

} // namespace trireme::offload
