#pragma once

#include <trireme/memory/aio/file.h>
#include <trireme/memory/aio/memory.h>
#include <trireme/memory/aio/options.h>

#include <cstdint>
#include <memory>

namespace trireme::aio {

class Engine;
class Queue;

/// Errors: InputError for invalid options.
void check(const Options& options);

/// Reads and writes files asynchronously. A thread submits requests to an io_uring and waits for them; if the kernel
/// has none or refuses it, threads call pread() and pwrite(). Both continue requests that the system did only in part.
///
/// Transfers are unordered, even those of the same bytes: wait for a write before reading what it wrote. Their memory
/// must stay valid until they are finished. Thread-safe. A forked process must not use its parent's. Cost: a few
/// microseconds per transfer, and at most one system call per block.
class Transfers {
 public:
  using Id = uint64_t;

  /// Without io_uring if TRIREME_AIO=threads is in the environment or `io_uring` is false. Errors: InputError for
  /// invalid options.
  explicit Transfers(const Options& options = {}, bool io_uring = true);
  /// Waits for all transfers. Errors that no wait() has reported are logged as warnings.
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  /// `offset`, `bytes` and the address must be multiples of kAlignment, or Error. Returns at once.
  Id read(const File& file, int64_t offset, void* to, int64_t bytes);
  Id write(const File& file, int64_t offset, const void* from, int64_t bytes);
  /// Waits until no request of it is in the system. Errors: Error with file, operation, offset, the system's reason and
  /// the free space, on every call.
  void wait(Id id);
  /// True also for a failed transfer.
  bool finished(Id id);

  /// Pins these pages in the kernel, so that their transfers cost less. False if the kernel refuses (RLIMIT_MEMLOCK);
  /// they are then used as any other. Remove the memory before freeing it, unless it outlives this object.
  bool add_buffer(void* memory, int64_t bytes);
  /// No transfer of it may be unfinished.
  void remove_buffer(void* memory);

  /// Bytes of finished requests, also of failed transfers.
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
