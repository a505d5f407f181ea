#include <trireme/fused/helper_threads.h>

#include <trireme/base/error.h>

#include <utility>

namespace trireme::fused {
namespace {

constexpr int kSpins = 4000; // about 100 us
constexpr int kMostShared = 0xFFFF;

uint64_t state_of(uint32_t work, int64_t parts) {
  return uint64_t{work} << 32U | static_cast<uint64_t>(parts) << 16U;
}
uint32_t work_in(uint64_t state) {
  return static_cast<uint32_t>(state >> 32U);
}
int64_t parts_in(uint64_t state) {
  return static_cast<int64_t>(state >> 16U & kMostShared);
}
int64_t next_in(uint64_t state) {
  return static_cast<int64_t>(state & kMostShared);
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
  start(threads - 1);
  call_ = call;
  context_ = context;
  failed_ = false;
  done_ = 0;
  invited_ = threads - 1;
  const uint32_t work = work_.load() + 1;
  state_ = state_of(work, parts);
  work_ = work;
  if (sleepers_ > 0) {
    work_.notify_all();
  }
  take_parts(work);
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
      take_parts(work);
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

void HelperThreads::take_parts(uint32_t work) {
  uint64_t state = state_;
  while (work_in(state) == work && next_in(state) < parts_in(state)) {
    if (state_.compare_exchange_weak(state, state + 1)) {
      take(next_in(state));
      state = state_;
    }
  }
}

void HelperThreads::take(int64_t part) {
  if (!failed_) {
    try {
      call_(context_, part);
    } catch (...) {
      if (!failed_.exchange(true)) {
        error_ = std::current_exception();
      }
    }
  }
  ++done_;
}

} // namespace trireme::fused
