#pragma once

#include <trireme/memory/aio/options.h>
#include <trireme/memory/aio/queue.h>

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::aio {

/// Executes a queue's requests. Its destructor ends its threads; the queue must be closed by then.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual const char* name() const = 0;
  /// Registers frequently used memory with the kernel; false if the kernel does not keep it.
  virtual bool add_buffer(std::byte*, int64_t) { return false; }
  virtual void remove_buffer(std::byte*) {}
};

/// `threads` threads that call pread() and pwrite(), one request at a time.
std::unique_ptr<Engine> make_thread_engine(Queue& queue, int64_t threads);

/// One thread that keeps `queue_depth` requests in an io_uring. Returns nullptr if there is none; `why_not` gives the
/// reason. If the kernel later refuses, the thread goes on with pread() and pwrite(), with a warning.
std::unique_ptr<Engine> make_uring_engine(Queue& queue, const Options& options, std::string& why_not);

} // namespace trireme::aio
