#pragma once

#include <trireme/memory/aio/file.h>
#include <trireme/memory/aio/memory.h>
#include <trireme/memory/aio/options.h>

#include <cstdint>
#include <memory>

namespace trireme::aio {

class Engine;
class Queue;

/// Errors: InputError for options that cannot be.
void check(const Options& options);

/// Reads and writes files while the program computes: a thread of its own hands requests to an io_uring and waits for
/// them; where the kernel has none, or refuses it, threads call pread() and pwrite(). Both continue what the system did
/// only in part.
///
/// Transfers are not ordered, not even those of the same bytes: wait for a write before what it wrote is read. Their
/// memory must stay until they are finished. Safe for threads. A process that was forked must not use those of its
/// parent. Cost: a few microseconds a transfer; a system call or less a block.
class Transfers {
 public:
  using Id = uint64_t;

  /// TRIREME_AIO=threads in the environment, or not `io_uring`, uses no io_uring. Errors: InputError for options that
  /// cannot be.
  explicit Transfers(const Options& options = {}, bool io_uring = true);
  /// Waits for all. What failed and was not waited for is logged as a warning.
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  /// `offset`, `bytes` and the address are multiples of kAlignment, or Error. Returns at once.
  Id read(const File& file, int64_t offset, void* to, int64_t bytes);
  Id write(const File& file, int64_t offset, const void* from, int64_t bytes);
  /// Until nothing of it is in the system any more. Errors: Error with file, operation, offset, the system's reason and
  /// the free space, each time it is asked for.
  void wait(Id id);
  /// Also of one that failed.
  bool finished(Id id);

  /// Has the kernel keep these pages at hand, so that transfers of them cost less; whether it does: RLIMIT_MEMLOCK may
  /// refuse, then they are used as any other. The memory must be removed before it is freed, or live longer than this.
  bool add_buffer(void* memory, int64_t bytes);
  /// No transfer of it may be unfinished.
  void remove_buffer(void* memory);

  /// Of finished requests, also those of transfers that failed.
  int64_t bytes_read() const;
  int64_t bytes_written() const;
  /// "io_uring" or "threads".
  const char* engine() const;

 private:
  Id add(bool write, const File& file, int64_t offset, std::byte* memory, int64_t bytes);

  std::unique_ptr<Queue> queue_;
  std::unique_ptr<Engine> engine_;
};

} // namespace trireme::aio
