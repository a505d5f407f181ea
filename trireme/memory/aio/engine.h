#pragma once

#include <trireme/memory/aio/options.h>
#include <trireme/memory/aio/queue.h>

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::aio {

/// Moves the bytes of a queue's requests. Its destructor ends its threads; the queue is closed by then.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual const char* name() const = 0;
  /// Tells the kernel of memory that will be used often; whether it keeps it.
  virtual bool add_buffer(std::byte*, int64_t) {
    return false;
  }
  virtual void remove_buffer(std::byte*) {}
};

/// `threads` threads that call pread() and pwrite(), a request at a time.
std::unique_ptr<Engine> make_thread_engine(Queue& queue, int64_t threads);

/// One thread that keeps `queue_depth` requests in an io_uring. nullptr where there is none; `why_not` says why. Where
/// the kernel refuses to go on with it later, the thread goes on as one of those above, with a warning.
std::unique_ptr<Engine> make_uring_engine(Queue& queue, const Options& options, std::string& why_not);

} // namespace trireme::aio
