#include "aio_watch.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/types.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
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
  int64_t inside = 0;     // requests that it has
  bool has_given = false; // the last answer was a request
};

struct Watch {
  std::mutex mutex;
  bool is_on = false;
  AioSeen seen;
  std::map<const void*, Ring> rings;
  std::condition_variable let_go;
  bool holds_reads = false;
  bool holds_writes = false;
  int64_t may_go = 0;
};

Watch& watch() {
  static auto* const the = new Watch(); // threads may outlive statics
  return *the;
}

template <typename F>
F* of_the_system(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

// "gradients.0" of a file that has no name any more.
std::string name_of_file(int file) {
  std::error_code error;
  const std::string name =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file), error).filename().string();
  return name.substr(0, name.find(' '));
}

bool is_thread_of_aio() {
  char name[16] = "";
  ::pthread_getname_np(::pthread_self(), name, sizeof(name));
  return std::string_view(name) == "trireme-aio";
}

void note_and_hold(bool write, int file, size_t bytes, off_t offset) {
  std::unique_lock lock(watch().mutex);
  AioSeen& seen = watch().seen;
  seen.largest_write = std::max(seen.largest_write, static_cast<int64_t>(write ? bytes : 0));
  if (!is_thread_of_aio()) {
    return;
  }
  if (watch().is_on) {
    seen.calls.push_back({write, name_of_file(file), offset});
  }
  const bool& held = write ? watch().holds_writes : watch().holds_reads;
  watch().let_go.wait(lock, [&] { return !held || watch().may_go > 0; });
  watch().may_go -= held ? 1 : 0;
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

void hold_aio(bool reads, bool writes) {
  const std::lock_guard lock(watch().mutex);
  watch().holds_reads = reads;
  watch().holds_writes = writes;
  watch().may_go = 0;
}

void let_aio_go(int64_t calls) {
  const std::lock_guard lock(watch().mutex);
  watch().may_go += calls;
  watch().let_go.notify_all();
}

void end_hold_of_aio() {
  hold_aio(false, false);
  watch().let_go.notify_all();
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
  trireme::test::note_and_hold(true, file, bytes, offset);
  return system(file, from, bytes, offset);
}

extern "C" ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  static auto* const system = of_the_system<ssize_t(int, void*, size_t, off_t)>("pread");
  trireme::test::note_and_hold(false, file, bytes, offset);
  return system(file, to, bytes, offset);
}

#ifdef TRIREME_HAS_LIBURING
namespace {

bool moves_bytes(const io_uring_sqe& entry) {
  return entry.opcode == IORING_OP_READ || entry.opcode == IORING_OP_WRITE || entry.opcode == IORING_OP_READ_FIXED ||
         entry.opcode == IORING_OP_WRITE_FIXED;
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
