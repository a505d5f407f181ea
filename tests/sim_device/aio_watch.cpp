#include "aio_watch.h"

#include <dlfcn.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#ifdef TRIREME_HAS_LIBURING
#include <liburing.h>
#endif

namespace trireme::test {
namespace {

struct Ring {
  int64_t inside = 0; // requests that it has
  bool has_given = false; // the last answer was a request
};

struct Watch {
  std::mutex mutex;
  bool is_on = false;
  AioSeen seen;
  std::map<const void*, Ring> rings;
};

Watch& watch() {
  static auto* const the = new Watch(); // threads may outlive statics
  return *the;
}

template <typename F>
F* of_the_system(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

} // namespace

void watch_aio() {
  const std::lock_guard lock(watch().mutex);
  watch().is_on = true;
  watch().seen = {};
  watch().rings.clear();
}

AioSeen aio_seen() {
  const std::lock_guard lock(watch().mutex);
  return watch().seen;
}

bool has_io_uring() {
#ifdef TRIREME_HAS_LIBURING
  const char* const wanted = std::getenv("TRIREME_AIO");
  io_uring ring{};
  if ((wanted != nullptr && std::string_view(wanted) == "threads") || ::io_uring_queue_init(2, &ring, 0) != 0) {
    return false;
  }
  ::io_uring_queue_exit(&ring);
  return true;
#else
  return false;
#endif
}

} // namespace trireme::test

using trireme::test::of_the_system;
using trireme::test::watch;

extern "C" ssize_t pwrite(int file, const void* from, size_t bytes, off_t offset) {
  static auto* const system = of_the_system<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  {
    const std::lock_guard lock(watch().mutex);
    watch().seen.largest_write = std::max(watch().seen.largest_write, static_cast<int64_t>(bytes));
  }
  return system(file, from, bytes, offset);
}

#ifdef TRIREME_HAS_LIBURING
namespace {

bool moves_bytes(const io_uring_sqe& entry) {
  return entry.opcode == IORING_OP_READ || entry.opcode == IORING_OP_WRITE || entry.opcode == IORING_OP_READ_FIXED || entry.opcode == IORING_OP_WRITE_FIXED;
}

} // namespace

extern "C" int io_uring_submit_and_wait(io_uring* ring, unsigned wanted) {
  static auto* const system = of_the_system<int(io_uring*, unsigned)>("io_uring_submit_and_wait");
  {
    const std::lock_guard lock(watch().mutex);
    int64_t fresh = 0;
    for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; ++i) {
      fresh += moves_bytes(ring->sq.sqes[i & ring->sq.ring_mask]) ? 1 : 0;
    }
    trireme::test::Ring& known = watch().rings[ring];
    watch().seen.overlaps = watch().seen.overlaps || (fresh > 0 && known.inside > 0);
    watch().seen.most_at_once = std::max(watch().seen.most_at_once, fresh);
    known.inside += fresh;
  }
  return system(ring, wanted);
}

extern "C" unsigned io_uring_peek_batch_cqe(io_uring* ring, io_uring_cqe** entries, unsigned count) {
  static auto* const system = of_the_system<unsigned(io_uring*, io_uring_cqe**, unsigned)>("io_uring_peek_batch_cqe");
  const std::lock_guard lock(watch().mutex);
  trireme::test::Ring& known = watch().rings[ring];
  if (!watch().is_on || std::exchange(known.has_given, false)) {
    return watch().is_on ? 0 : system(ring, entries, count);
  }
  const unsigned found = system(ring, entries, std::min(count, 1U));
  if (found > 0) {
    known.has_given = true;
    known.inside -= entries[0]->user_data == ~uint64_t{0} ? 0 : 1; // the engine's own wake-up
  }
  return found;
}
#endif
