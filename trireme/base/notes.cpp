#include <trireme/base/notes.h>

#include <trireme/base/error.h>

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>

namespace trireme {
namespace {

constexpr size_t kThreads = 64;
constexpr uint32_t kDepth = 16;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t this_thread() {
  return static_cast<int64_t>(syscall(SYS_gettid));
}

struct Frame {
  std::atomic<const char*> what{nullptr};
  std::atomic<int64_t> number{-1};
  std::atomic<const char*> detail{nullptr};
  std::atomic<int64_t> since_ns{0};
};

struct alignas(64) Slot {
  /// 0: free.
  std::atomic<int64_t> thread{0};
  std::atomic<uint32_t> depth{0};
  /// Grows with every change, so that a reader notices a torn read.
  std::atomic<uint64_t> changes{0};
  std::array<Frame, kDepth> frames;
};

constinit std::array<Slot, kThreads> slots;

/// A thread's slot from its first note to its end.
struct Owner {
  Slot* slot = nullptr;
  Owner() {
    static const int once = pthread_atfork(nullptr, nullptr, [] { reset_after_fork(); });
    static_cast<void>(once);
    for (Slot& candidate : slots) {
      int64_t free = 0;
      if (candidate.thread.compare_exchange_strong(free, this_thread())) {
        slot = &candidate;
        break;
      }
    }
  }
  ~Owner() {
    if (slot != nullptr) {
      slot->depth.store(0);
      slot->thread.store(0);
    }
  }
  static void reset_after_fork();
};

thread_local Owner owner;

// After fork() only the calling thread is left, with another id.
void Owner::reset_after_fork() {
  for (Slot& slot : slots) {
    slot.thread.store(&slot == owner.slot ? this_thread() : 0);
  }
}

bool read(const Slot& slot, int64_t now, ThreadNotes& into) {
  const uint64_t before = slot.changes.load(std::memory_order_acquire);
  into.thread = slot.thread.load(std::memory_order_relaxed);
  into.notes.clear();
  const uint32_t depth = std::min(slot.depth.load(std::memory_order_relaxed), kDepth);
  for (uint32_t level = 0; level < depth; ++level) {
    const Frame& frame = slot.frames[level];
    const char* what = frame.what.load(std::memory_order_relaxed);
    const char* detail = frame.detail.load(std::memory_order_relaxed);
    into.notes.push_back(
        {what == nullptr ? "" : what, frame.number.load(std::memory_order_relaxed), detail == nullptr ? "" : detail,
         static_cast<double>(std::max<int64_t>(0, now - frame.since_ns.load(std::memory_order_relaxed))) * 1e-9});
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  return slot.changes.load(std::memory_order_relaxed) == before;
}

} // namespace

Note::Note(const char* what, int64_t number, const char* detail) noexcept : slot_(owner.slot) {
  auto* slot = static_cast<Slot*>(slot_);
  if (slot == nullptr) {
    return;
  }
  const uint32_t depth = slot->depth.load(std::memory_order_relaxed);
  if (depth < kDepth) {
    Frame& frame = slot->frames[depth];
    frame.what.store(what, std::memory_order_relaxed);
    frame.number.store(number, std::memory_order_relaxed);
    frame.detail.store(detail, std::memory_order_relaxed);
    frame.since_ns.store(now_ns(), std::memory_order_relaxed);
  }
  slot->depth.store(depth + 1, std::memory_order_relaxed);
  slot->changes.store(slot->changes.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

Note::~Note() {
  auto* slot = static_cast<Slot*>(slot_);
  if (slot == nullptr) {
    return;
  }
  slot->depth.store(slot->depth.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  slot->changes.store(slot->changes.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

const char* keep_name(std::string_view name) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string, std::less<>>; // readers may outlive statics
  const std::lock_guard lock(mutex);
  const auto known = names->find(name);
  return (known != names->end() ? known : names->emplace(name).first)->c_str();
}

std::vector<ThreadNotes> current_notes() {
  std::vector<ThreadNotes> threads;
  const int64_t now = now_ns();
  for (const Slot& slot : slots) {
    if (slot.thread.load(std::memory_order_relaxed) == 0) {
      continue;
    }
    ThreadNotes notes;
    for (int attempt = 0; attempt < 10 && !read(slot, now, notes); ++attempt) {
    }
    notes.main = notes.thread == static_cast<int64_t>(getpid());
    if (!notes.notes.empty()) {
      threads.push_back(std::move(notes));
    }
  }
  std::stable_partition(threads.begin(), threads.end(), [](const ThreadNotes& notes) { return notes.main; });
  return threads;
}

std::string describe(const NoteView& note) {
  return concat(note.what, note.number < 0 ? "" : concat(' ', note.number),
                note.detail.empty() ? "" : concat(" (", note.detail, ')'));
}

} // namespace trireme
