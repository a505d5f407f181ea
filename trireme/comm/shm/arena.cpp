#include <trireme/comm/shm/arena.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <sstream>
#include <vector>

namespace trireme::comm::shm {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLarge = size_t{4} << 20;
/// Address space is large but finite when many ranks map each other.
constexpr size_t kLargestArena = size_t{1} << 40;

size_t round_up(size_t value, size_t step) {
  return (value + step - 1) / step * step;
}

uint64_t random_number() {
  uint64_t value = 0;
  if (getrandom(&value, sizeof(value), 0) != static_cast<ssize_t>(sizeof(value))) {
    value = static_cast<uint64_t>(getpid()) << 32 ^ static_cast<uint64_t>(std::time(nullptr));
  }
  return value | 1;
}

size_t arena_size() {
  const auto pages = static_cast<size_t>(std::max(1L, sysconf(_SC_PHYS_PAGES)));
  return std::min(kLargestArena, round_up(pages * kPage, kHugePage));
}

std::byte* map_whole(int descriptor, size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  madvise(memory, size, MADV_HUGEPAGE); // advice: without huge pages for shared memory nothing changes
  madvise(memory, size, MADV_DONTDUMP);
  return static_cast<std::byte*>(memory);
}

} // namespace

std::string Arena::obstacle() {
  const int descriptor = memfd_create("trireme", MFD_CLOEXEC);
  if (descriptor < 0) {
    return concat("the system has no memory files (memfd_create: ", std::strerror(errno), ")");
  }
  close(descriptor);
  if (access("/proc/self/fd", R_OK | X_OK) != 0) {
    return concat("/proc/self/fd is not accessible (", std::strerror(errno), ")");
  }
  rlimit files{};
  if (getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur < arena_size()) {
    return concat("no file may be larger than ", format_bytes(files.rlim_cur), " here (ulimit -f), but it needs ",
                  format_bytes(arena_size()));
  }
  return "";
}

namespace {

std::atomic<int> the_arenas_descriptor = -1;

} // namespace

Arena& Arena::process() {
  static Arena* const arena = new Arena(); // tensors may outlive statics
  return *arena;
}

int64_t Arena::bytes_in_use() {
  struct stat file{};
  const int descriptor = the_arenas_descriptor;
  return descriptor >= 0 && fstat(descriptor, &file) == 0 ? static_cast<int64_t>(file.st_blocks) * 512 : 0;
}

Arena::Arena() : nonce_(random_number()), size_(arena_size()) {
  std::string why = obstacle();
  if (why.empty()) {
    descriptor_ = memfd_create("trireme", MFD_CLOEXEC);
    if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(size_)) != 0 ||
        (base_ = map_whole(descriptor_, size_)) == nullptr) {
      why = concat(std::strerror(errno), errno == ENOMEM ? " (ulimit -v?)" : "");
    }
  }
  if (!why.empty()) {
    if (descriptor_ >= 0) {
      close(descriptor_);
    }
    throw Error("comm", concat("cannot make shared memory: ", why, "."),
                "Raise the limit, or set TRIREME_BACKEND=gloo.");
  }
  new (base_) ArenaHeader();
  header().nonce = nonce_;
  free_[kPage] = size_ - kPage;
  the_arenas_descriptor = descriptor_;
}

void* Arena::allocate(size_t bytes) {
  const size_t align = bytes >= kLarge ? kHugePage : kLine;
  const size_t size = round_up(std::max<size_t>(bytes, 1), bytes >= kLarge ? kPage : kLine);
  const std::lock_guard lock(mutex_);
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const auto [begin, length] = *hole;
    const uint64_t start = round_up(begin, align);
    if (start + size > begin + length) {
      continue;
    }
    free_.erase(hole);
    if (start > begin) {
      free_[begin] = start - begin;
    }
    if (start + size < begin + length) {
      free_[start + size] = begin + length - start - size;
    }
    used_[start] = size;
    return base_ + start;
  }
  return nullptr;
}

void* Arena::allocate_zeros(size_t bytes) {
  void* memory = allocate(bytes);
  const bool dropped =
      bytes >= kLarge && memory != nullptr && madvise(memory, round_up(bytes, kPage), MADV_REMOVE) == 0;
  if (memory != nullptr && !dropped) {
    std::memset(memory, 0, bytes);
  }
  return memory;
}

size_t Arena::allocated() {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [offset, size] : used_) {
    bytes += size;
  }
  return bytes;
}

void Arena::release(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(offset_of(memory));
  if (found == used_.end() || !reuse_) {
    return;
  }
  uint64_t begin = found->first;
  uint64_t size = found->second;
  used_.erase(found);
  if (size >= kLarge) {
    const uint64_t first = round_up(begin, kPage);
    madvise(base_ + first, (begin + size) / kPage * kPage - first, MADV_REMOVE);
  }
  auto next = free_.lower_bound(begin);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && begin + size == next->first) {
    size += next->second;
    free_.erase(next);
  }
  free_[begin] = size;
}

bool Arena::contains(const void* memory, size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(memory);
  return begin >= base_ && begin + bytes <= base_ + size_;
}

std::string Arena::address() const {
  return concat(getpid(), ' ', descriptor_, ' ', nonce_, ' ', size_);
}

void Arena::stop_reuse() {
  const std::lock_guard lock(mutex_);
  reuse_ = false;
}

std::shared_ptr<PeerArena> PeerArena::map(const std::string& address) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, std::weak_ptr<PeerArena>>();
  const std::lock_guard lock(mutex);
  if (auto found = (*known)[address].lock()) {
    return found;
  }
  std::istringstream words(address);
  int descriptor = -1;
  uint64_t nonce = 0;
  std::shared_ptr<PeerArena> peer(new PeerArena());
  words >> peer->process_ >> descriptor >> nonce >> peer->size_;
  if (nonce == Arena::process().nonce()) {
    peer->own_ = true;
    peer->base_ = Arena::process().base();
    return peer;
  }
  const std::string path = concat("/proc/", peer->process_, "/fd/", descriptor);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) {
    throw Error("comm",
                concat("cannot open the shared memory of process ", peer->process_, ": ", std::strerror(errno)));
  }
  struct stat state{};
  const bool right_size = fstat(opened, &state) == 0 && static_cast<size_t>(state.st_size) == peer->size_;
  peer->base_ = right_size ? map_whole(opened, peer->size_) : nullptr;
  const int problem = errno;
  close(opened);
  if (right_size && peer->base_ == nullptr) {
    throw Error("comm", concat("cannot map the shared memory of process ", peer->process_, ": ", std::strerror(problem),
                               problem == ENOMEM ? " (ulimit -v?)" : ""));
  }
  if (!right_size || peer->header().nonce != nonce) {
    throw Error("comm", concat("process ", peer->process_, " is not the announced one (another container?)"));
  }
  peer->watch_ = static_cast<int>(syscall(SYS_pidfd_open, peer->process_, 0));
  (*known)[address] = peer;
  return peer;
}

PeerArena::~PeerArena() {
  if (!own_ && base_ != nullptr) {
    munmap(base_, size_);
  }
  if (watch_ >= 0) {
    close(watch_);
  }
}

bool PeerArena::ended() const {
  if (own_) {
    return false;
  }
  if (watch_ >= 0) {
    pollfd state{watch_, POLLIN, 0};
    return poll(&state, 1, 0) > 0;
  }
  return kill(process_, 0) != 0 && errno == ESRCH;
}

void PeerArena::ring() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ArenaHeader& header = this->header();
  if (header.sleepers.load(std::memory_order_relaxed) != 0) {
    header.door.fetch_add(1);
    syscall(SYS_futex, &header.door, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

void ArenaHeader::note_core() {
  const auto now = static_cast<uint32_t>(1 + sched_getcpu());
  if (core.load(std::memory_order_relaxed) != now) { // avoids a write to a line that others cache
    core.store(now, std::memory_order_relaxed);
  }
}

void sleep_at_door(ArenaHeader& header, uint32_t seen, int64_t microseconds) {
  timespec time{};
  time.tv_sec = microseconds / 1'000'000;
  time.tv_nsec = microseconds % 1'000'000 * 1000;
  syscall(SYS_futex, &header.door, FUTEX_WAIT, seen, &time, nullptr, 0);
}

} // namespace trireme::comm::shm
