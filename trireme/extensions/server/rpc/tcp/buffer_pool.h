#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

namespace trireme::rpc::tcp {

/// Reusable memory for bodies: the page faults of a fresh 64 MiB cost more time than receiving them. Buffers may
/// outlive the pool.
class BufferPool {
 public:
  BufferPool();
  /// Uninitialised, aligned to 64 bytes. Returns to the pool with the last owner. Errors: std::bad_alloc.
  std::shared_ptr<std::byte> take(size_t bytes);

 private:
  struct Free {
    std::mutex mutex;
    std::multimap<size_t, std::byte*> buffers;
    size_t bytes = 0;
    ~Free();
  };
  std::shared_ptr<Free> free_;
};

} // namespace trireme::rpc::tcp
