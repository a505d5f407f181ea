#include <trireme/comm/shm/progress_room.h>

#include <trireme/comm/shm/arena.h>

#include <sched.h>

#include <chrono>

namespace trireme::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;

/// Time that a waiting rank stays awake, also after a sleep that was over within kShortSleep. Otherwise ranks that wait
/// for each other in turn would sleep each time, and a wake-up takes longer than their wait.
constexpr std::chrono::microseconds kAwake{20};
constexpr std::chrono::microseconds kLongAwake{100};
constexpr std::chrono::microseconds kShortSleep{200};
/// Glances between two checks of all groups, and how many come first without a pause: the duration of a small operation
/// of ranks that are all present.
constexpr int kGlances = 16;
constexpr int kFirstGlances = 64;
/// Rings cannot be missed; this is for events that do not ring: dying peers, interruptions, deadlines.
constexpr int64_t kSleepMicroseconds = 20'000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Sleeping {
 public:
  explicit Sleeping(ArenaHeader& header) : header_(header) { header_.sleepers.fetch_add(1); }
  ~Sleeping() { header_.sleepers.fetch_sub(1); }
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

void ProgressRoom::add(Worker* worker) {
  const std::lock_guard lock(mutex);
  workers_.push_back(worker);
}

void ProgressRoom::remove(Worker* worker) {
  const std::lock_guard lock(mutex);
  std::erase(workers_, worker);
}

namespace {

/// Glances until something stirs, at most this many times.
template <typename Pause>
void glance(const Goal& goal, int times, const Pause& pause) {
  bool stirs = false;
  for (int time = 0; time < times && !stirs; ++time) {
    pause(); // before each one: a thread that always finds work leaves the lock to others meanwhile
    stirs = goal.stirs();
  }
}

} // namespace

bool ProgressRoom::work(Worker& own, const Goal& goal) {
  bool did = own.progress();
  if (goal.reached()) {
    return true;
  }
  for (Worker* worker : workers_) {
    if (worker != &own && worker->pending()) {
      did = worker->progress() || did;
    }
  }
  return did;
}

void ProgressRoom::wait(Worker& own, Goal& goal) {
  ArenaHeader& header = Arena::process().header();
  int idle = 0;
  const auto go_on = [&](bool look_around) {
    const std::lock_guard lock(mutex);
    if (goal.reached()) {
      return false;
    }
    // Comes before the checks: a complete operation succeeds, even if the group has failed since.
    const bool did = work(own, goal);
    idle = did ? 0 : idle;
    if (goal.reached()) {
      return false;
    }
    goal.check(look_around && !did);
    return true;
  };
  const auto awake = slept_in_vain_.load(std::memory_order_relaxed) ? kLongAwake : kAwake;
  Clock::time_point idle_since;
  bool glanced = false;
  while (go_on(false)) {
    header.note_core();
    const bool yields = goal.shares_core();
    if (!yields && !glanced) { // once per wait: a goal that always stirs must reach its deadline
      glanced = true;
      glance(goal, kFirstGlances, [] {});
      continue;
    }
    const auto now = Clock::now();
    idle_since = ++idle == 1 ? now : idle_since;
    if (now - idle_since < awake) {
      if (yields) {
        sched_yield();
      } else {
        glance(goal, kGlances, pause);
      }
      continue;
    }
    const uint32_t seen = header.door.load();
    const Sleeping sleeping(header);
    const int before = idle;
    if (!go_on(true)) {
      return;
    }
    if (idle == before) {
      const auto begin = Clock::now();
      sleep_at_door(header, seen, kSleepMicroseconds);
      slept_in_vain_.store(Clock::now() - begin < kShortSleep, std::memory_order_relaxed);
    }
  }
}

} // namespace trireme::comm::shm
