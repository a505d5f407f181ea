#include "memory.h"

#include "capture.h"
#include "guard.h"
#include "timeline.h"

#include <trireme/base/error.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

namespace trireme::sim {

struct PrivatePool {
  std::map<uintptr_t, size_t> regions;                    // begin, bytes
  uintptr_t next = 0;                                     // in the last region
  std::multimap<std::pair<int, size_t>, uintptr_t> spare; // by stream and size
  std::map<uintptr_t, std::pair<int, size_t>> used;
};

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kArena = size_t{16} << 30; // of one device; pages are real when they are touched

/// Memory that was freed while recorded streams had work: spare when the allocator has asked `polls` times whether it
/// is done, or this thread knows.
struct Parked {
  int stream;
  size_t bytes;
  uintptr_t begin;
  Clock until;
  int polls = 0;
};

struct Arena {
  char* device = nullptr; // no access
  char* kernel = nullptr;
  size_t bytes = 0;
  size_t size = kArena; // what a device may have in use
  std::array<size_t, kMostDevices> top{};
  std::multimap<std::pair<int, size_t>, uintptr_t> spare; // by stream and size
  std::vector<Parked> parked;
  std::map<uintptr_t, size_t> pinned;
  Memory pinned_memory;
  std::array<Memory, kMostDevices> memory;
  std::vector<PrivatePool*> pools; // never freed
};

Arena& arena() {
  static auto* const the = new Arena();
  return *the;
}

// At least this many bytes at a time are reserved for a pool.
constexpr size_t kRegion = size_t{4} << 20;

// A pool's regions are each one block of the timeline: their owners change within replays.
uintptr_t take_from(PrivatePool& pool, size_t bytes, int index, int stream) {
  Arena& all = arena();
  uintptr_t begin = 0;
  if (const auto found = pool.spare.find({stream, bytes}); found != pool.spare.end()) {
    begin = found->second;
    pool.spare.erase(found);
  } else {
    if (pool.regions.empty() || pool.next + bytes > pool.regions.rbegin()->first + pool.regions.rbegin()->second) {
      const size_t region = (std::max(bytes, kRegion) + kPage - 1) / kPage * kPage;
      size_t& top = all.top[static_cast<size_t>(index)];
      top = (top + kPage - 1) / kPage * kPage; // memory_snapshot() takes whole pages
      if (top + region > kArena) {
        throw Error("sim_device", "out of memory");
      }
      pool.next = reinterpret_cast<uintptr_t>(all.device) + static_cast<size_t>(index) * kArena + top;
      top += region;
      pool.regions[pool.next] = region;
      timeline().allocated(pool.next, static_cast<int64_t>(region), stream);
      Memory& used = all.memory[static_cast<size_t>(index)];
      ++used.fresh;
      used.bytes += static_cast<int64_t>(region);
      used.peak = std::max(used.peak, used.bytes);
    }
    begin = pool.next;
    pool.next += bytes;
  }
  pool.used[begin] = {stream, bytes};
  return begin;
}

bool give_back_to_pool(uintptr_t begin) {
  for (PrivatePool* const pool : arena().pools) {
    if (const auto found = pool->used.find(begin); found != pool->used.end()) {
      pool->spare.emplace(found->second, begin);
      pool->used.erase(found);
      return true;
    }
  }
  return false;
}

bool is_of_a_pool(uintptr_t begin) {
  return std::any_of(arena().pools.begin(), arena().pools.end(), [&](const PrivatePool* pool) {
    const auto after = pool->regions.upper_bound(begin);
    return after != pool->regions.begin() && begin < std::prev(after)->first + std::prev(after)->second;
  });
}

void drop(void* pointer) {
  Timeline& line = timeline();
  const std::lock_guard lock(line.mutex);
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  if (give_back_to_pool(begin)) {
    return;
  }
  const int stream = line.stream_of(begin);
  const auto [bytes, recorded] = line.freed(begin);
  std::memset(kernel_pointer(pointer), 0xff,
              static_cast<size_t>(std::min<int64_t>(bytes, 1 << 16))); // NaN, for who comes too late
  arena().memory[static_cast<size_t>(device_of(pointer))].bytes -= bytes;
  if (recorded) {
    arena().parked.push_back({stream, static_cast<size_t>(bytes), begin, *recorded});
  } else {
    arena().spare.emplace(std::pair(stream, static_cast<size_t>(bytes)), begin);
  }
}

bool has_passed(const Clock& until) {
  const Clock& known = Timeline::host();
  return std::equal(known.begin(), known.end(), until.begin(), std::greater_equal<>());
}

// As CUDA's allocator does with the events of recorded streams.
void take_back_parked() {
  Arena& all = arena();
  std::erase_if(all.parked, [&](Parked& block) {
    const bool done = ++block.polls >= timeline().polls || has_passed(block.until);
    if (done) {
      all.spare.emplace(std::pair(block.stream, block.bytes), block.begin);
    }
    return done;
  });
}

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int index = current_device();
    const c10::Device device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index));
    if (bytes == 0) {
      return {nullptr, device};
    }
    Timeline& line = timeline();
    const std::lock_guard lock(line.mutex);
    Arena& all = arena();
    take_back_parked();
    const size_t whole = (bytes + 511) / 512 * 512;
    if (static_cast<size_t>(all.memory[static_cast<size_t>(index)].bytes) + whole > all.size) {
      throw Error("sim_device", "out of memory");
    }
    const int stream = clock_of(index, current_stream(index));
    if (PrivatePool* const pool = pool_for(stream)) {
      void* const pointer = reinterpret_cast<void*>(take_from(*pool, whole, index, stream));
      return {pointer, pointer, &drop, device};
    }
    refuse_in_capture("an allocation outside of the pool");
    uintptr_t begin = 0;
    if (const auto found = all.spare.find({stream, whole}); found != all.spare.end()) {
      begin = found->second;
      all.spare.erase(found);
    } else {
      size_t& top = all.top[static_cast<size_t>(index)];
      if (all.device == nullptr || top + whole > kArena) {
        throw Error("sim_device", all.device == nullptr ? "it was not started: call sim::start()" : "out of memory");
      }
      begin = reinterpret_cast<uintptr_t>(all.device) + static_cast<size_t>(index) * kArena + top;
      top += whole;
      ++all.memory[static_cast<size_t>(index)].fresh;
    }
    line.allocated(begin, static_cast<int64_t>(whole), stream);
    Memory& used = all.memory[static_cast<size_t>(index)];
    used.bytes += static_cast<int64_t>(whole);
    used.peak = std::max(used.peak, used.bytes);
    void* const pointer = reinterpret_cast<void*>(begin);
    return {pointer, pointer, &drop, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(kernel_pointer(to), kernel_pointer(from), bytes);
  }
  bool initialized() override { return arena().device != nullptr; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    const std::lock_guard lock(timeline().mutex);
    timeline().recorded(reinterpret_cast<uintptr_t>(pointer.get()), clock_of(stream.device_index(), stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const Memory used = memory(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    bytes.current = used.bytes;
    bytes.peak = used.peak;
    return stats;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::lock_guard lock(timeline().mutex);
    const Arena& all = arena();
    return {all.size - std::min(all.size, static_cast<size_t>(all.memory.at(static_cast<size_t>(device)).bytes)),
            all.size};
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(timeline().mutex);
    Memory& used = arena().memory.at(static_cast<size_t>(device));
    used.peak = used.bytes;
  }
};

class PinnedMemory final : public c10::Allocator {
 public:
  static void release(void* pointer) {
    const std::lock_guard lock(timeline().mutex);
    const auto found = arena().pinned.find(reinterpret_cast<uintptr_t>(pointer));
    timeline().pinned_freed(pointer, static_cast<int64_t>(found->second));
    arena().pinned_memory.bytes -= static_cast<int64_t>(std::bit_ceil(found->second));
    arena().pinned.erase(found);
    std::free(pointer);
  }
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, c10::kCPU};
    }
    const size_t alignment = bytes < kPage ? 64 : kPage;
    const size_t whole = (bytes + alignment - 1) / alignment * alignment;
    void* const pointer = std::aligned_alloc(alignment, whole);
    const std::lock_guard lock(timeline().mutex);
    arena().pinned[reinterpret_cast<uintptr_t>(pointer)] = whole;
    Memory& used = arena().pinned_memory;
    used.bytes += static_cast<int64_t>(std::bit_ceil(whole));
    used.peak = std::max(used.peak, used.bytes);
    return {pointer, pointer, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

DeviceMemory the_device_memory;
PinnedMemory the_pinned_memory;
REGISTER_ALLOCATOR(c10::kPrivateUse1, &the_device_memory);

} // namespace

PrivatePool* make_private_pool() {
  const std::lock_guard lock(timeline().mutex);
  return arena().pools.emplace_back(new PrivatePool());
}

std::vector<std::pair<size_t, std::vector<char>>> memory_snapshot(int device) {
  const Arena& all = arena();
  const size_t first = static_cast<size_t>(device) * kArena;
  std::vector<std::pair<size_t, std::vector<char>>> kept;
  for (size_t at = 0; at < all.top[static_cast<size_t>(device)]; at += kPage) {
    if (!is_of_a_pool(reinterpret_cast<uintptr_t>(all.device) + first + at)) {
      const char* const begin = all.kernel + first + at;
      kept.emplace_back(first + at, std::vector<char>(begin, begin + kPage));
    }
  }
  return kept;
}

void restore_memory(int, const std::vector<std::pair<size_t, std::vector<char>>>& snapshot) {
  for (const auto& [at, bytes] : snapshot) {
    std::memcpy(arena().kernel + at, bytes.data(), bytes.size());
  }
}

c10::Allocator& device_allocator() {
  return the_device_memory;
}
c10::Allocator& pinned_allocator() {
  return the_pinned_memory;
}

bool is_pinned(const void* pointer) {
  const std::lock_guard lock(timeline().mutex);
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  auto found = arena().pinned.upper_bound(at);
  return found != arena().pinned.begin() && at < (--found)->first + found->second;
}

bool is_device_pointer(const void* pointer) {
  const auto* const at = static_cast<const char*>(pointer);
  return arena().device != nullptr && at >= arena().device && at < arena().device + arena().bytes;
}

int device_of(const void* pointer) {
  return static_cast<int>(static_cast<size_t>(static_cast<const char*>(pointer) - arena().device) / kArena);
}

void* kernel_pointer(const void* pointer) {
  return is_device_pointer(pointer) ? arena().kernel + (static_cast<const char*>(pointer) - arena().device)
                                    : const_cast<void*>(pointer);
}

void map_memory(int devices) {
  Arena& all = arena();
  all.bytes = kArena * static_cast<size_t>(devices);
  const int file = ::memfd_create("sim_device", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(all.bytes)) != 0) {
    throw Error("sim_device", "no memory file");
  }
  const auto map = [&](int access) {
    return static_cast<char*>(::mmap(nullptr, all.bytes, access, MAP_SHARED | MAP_NORESERVE, file, 0));
  };
  all.device = map(PROT_NONE);
  all.kernel = map(PROT_READ | PROT_WRITE);
  ::close(file);
}

void set_memory_size(int64_t bytes) {
  const std::lock_guard lock(timeline().mutex);
  arena().size = static_cast<size_t>(bytes);
}

Memory memory(int device) {
  const std::lock_guard lock(timeline().mutex);
  return arena().memory.at(static_cast<size_t>(device));
}

Memory pinned_memory() {
  const std::lock_guard lock(timeline().mutex);
  return arena().pinned_memory;
}

} // namespace trireme::sim
