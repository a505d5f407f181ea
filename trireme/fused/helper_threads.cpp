#include <trireme/fused/helper_threads.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <utility>

namespace trireme::fused {
namespace {

constexpr int kSpins = 4000; // about 100 us
constexpr int kMostShared = 0xFFFF;

uint64_t state_of(uint32_t work, int64_t begin, int64_t end) {
  return uint64_t{work} << 32U | static_cast<uint64_t>(end) << 16U | static_cast<uint64_t>(begin);
}
uint32_t work_in(uint64_t state) {
  return static_cast<uint32_t>(state >> 32U);
}
int64_t begin_in(uint64_t state) {
  return static_cast<int64_t>(state & kMostShared);
}
int64_t end_in(uint64_t state) {
  return static_cast<int64_t>(state >> 16U & kMostShared);
}

enum class Side { front, back };

/// Takes a part from a range of this work. -1: it has none left.
int64_t claim(std::atomic<uint64_t>& range, uint32_t work, Side side) {
  uint64_t state = range;
  while (work_in(state) == work && begin_in(state) < end_in(state)) {
    const bool front = side == Side::front;
    const uint64_t rest =
        front ? state_of(work, begin_in(state) + 1, end_in(state)) : state_of(work, begin_in(state), end_in(state) - 1);
    if (range.compare_exchange_weak(state, rest)) {
      return front ? begin_in(state) : end_in(state) - 1;
    }
  }
  return -1;
}

struct Disown {
  std::atomic<bool>& owned;
  ~Disown() { owned = false; }
};

void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

} // namespace

HelperThreads& helper_threads() {
  static auto* const threads = new HelperThreads; // never destroyed: a child of fork() has no threads to join
  return *threads;
}

HelperThreads::~HelperThreads() {
  ends_ = true;
  ++work_;
  work_.notify_all();
  helpers_.clear(); // joins them while the rest is there
}

void HelperThreads::run_parts(int64_t parts, int threads, Call call, const void* context) {
  if (parts > kMostShared) {
    throw Error("fused", concat("work has ", parts, " parts; at most ", kMostShared, " can be shared"));
  }
  if (parts < 2 || threads < 2 || owned_.exchange(true)) {
    for (int64_t part = 0; part < parts; ++part) {
      call(context, part);
    }
    return;
  }
  const Disown disown{owned_};
  threads = static_cast<int>(std::min<int64_t>({threads, parts, kMostThreads}));
  start(threads - 1);
  call_ = call;
  context_ = context;
  failed_ = false;
  done_ = 0;
  invited_ = threads - 1;
  const uint32_t work = work_.load() + 1;
  for (int thread = 0; thread < threads; ++thread) {
    ranges_[static_cast<size_t>(thread)].state =
        state_of(work, parts * thread / threads, parts * (thread + 1) / threads);
  }
  work_ = work;
  if (sleepers_ > 0) {
    work_.notify_all();
  }
  take_parts(work, 0);
  for (int spins = 0; done_ < parts; ++spins) { // those begun by helpers
    if (spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield(); // the system may run the helper on this core
    }
  }
  if (failed_) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void HelperThreads::start(int helpers) {
  while (static_cast<int>(helpers_.size()) < helpers) {
    helpers_.emplace_back(
        [this, index = static_cast<int>(helpers_.size()), work = work_.load()] { help(index, work); });
  }
}

void HelperThreads::help(int index, uint32_t work) {
  while (true) {
    work = wait_for_work(work);
    if (ends_) {
      return;
    }
    if (index < invited_) {
      take_parts(work, index + 1);
    }
  }
}

uint32_t HelperThreads::wait_for_work(uint32_t work) {
  for (int spins = 0; spins < kSpins; ++spins) {
    if (const uint32_t now = work_; now != work) {
      return now;
    }
    pause();
  }
  ++sleepers_; // before work_ is read again: the caller writes that one first
  work_.wait(work);
  --sleepers_;
  return work_;
}

void HelperThreads::take_parts(uint32_t work, int thread) {
  const int threads = invited_ + 1;
  int64_t taken = 0;
  for (int other = 0; other < threads; ++other) {
    std::atomic<uint64_t>& range = ranges_[static_cast<size_t>((thread + other) % threads)].state;
    const Side side = other == 0 ? Side::front : Side::back;
    for (int64_t part = claim(range, work, side); part >= 0; part = claim(range, work, side)) {
      take(part);
      ++taken;
    }
  }
  if (taken > 0) { // else the work may be over, and done_ another's
    done_ += taken;
  }
}

void HelperThreads::take(int64_t part) {
  if (failed_) {
    return;
  }
  try {
    call_(context_, part);
  } catch (...) {
    if (!failed_.exchange(true)) {
      error_ = std::current_exception();
    }
  }
}

} // namespace trireme::fused
