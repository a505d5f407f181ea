#include <trireme/comm/shm/progress_room.h>

#include <trireme/base/cores.h>
#include <trireme/comm/shm/arena.h>

#include <sched.h>

#include <algorithm>

namespace trireme::comm::shm {
namespace {

/// About 20 us.
constexpr int kSpins = 400;
/// With more ranks than cores: lets the others of this core come first, without going to sleep.
constexpr int kYields = 4;
/// Rings cannot be missed; this is for what rings nobody: peers that die, interruptions, deadlines.
constexpr int64_t kSleepMicroseconds = 20'000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Sleeping {
 public:
  explicit Sleeping(ArenaHeader& header) : header_(header) {
    header_.sleepers.fetch_add(1);
  }
  ~Sleeping() {
    header_.sleepers.fetch_sub(1);
  }
  Sleeping(const Sleeping&) = delete;
  Sleeping& operator=(const Sleeping&) = delete;

 private:
  ArenaHeader& header_;
};

} // namespace

ProgressRoom& ProgressRoom::process() {
  static auto* const room = new ProgressRoom();
  return *room;
}

void ProgressRoom::add(Worker* worker, int ranks) {
  const std::lock_guard lock(mutex);
  workers_.push_back(worker);
  ranks_ = std::max(ranks_, ranks);
}

void ProgressRoom::remove(Worker* worker) {
  const std::lock_guard lock(mutex);
  std::erase(workers_, worker);
}

bool ProgressRoom::work(Worker& own) {
  bool did = own.progress();
  for (Worker* worker : workers_) {
    if (worker != &own && worker->pending()) {
      did = worker->progress() || did;
    }
  }
  return did;
}

void ProgressRoom::wait(Worker& own, const bool& done, const std::function<void(bool)>& check) {
  static const int cores = usable_cores();
  ArenaHeader& header = Arena::process().header();
  int idle = 0;
  const auto go_on = [&](bool look_around) {
    const std::lock_guard lock(mutex);
    if (done) {
      return false;
    }
    // Comes before the checks: a complete operation succeeds, even if the group has failed since.
    const bool did = work(own);
    idle = did ? 0 : idle;
    if (!done) {
      check(look_around && !did);
    }
    return !done;
  };
  const int spins = ranks_ <= cores ? kSpins : 0;
  while (go_on(false)) {
    if (++idle <= spins) {
      pause();
      continue;
    }
    if (idle <= spins + kYields) {
      sched_yield();
      continue;
    }
    const uint32_t seen = header.door.load();
    const Sleeping sleeping(header);
    const int before = idle;
    if (!go_on(true)) {
      return;
    }
    if (idle == before) {
      sleep_at_door(header, seen, kSleepMicroseconds);
    }
  }
}

} // namespace trireme::comm::shm
