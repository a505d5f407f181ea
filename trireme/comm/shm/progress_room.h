#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace trireme::comm::shm {

/// A group's progress engine, which also works for other ranks.
class Worker {
 public:
  virtual ~Worker() = default;
  /// Does a bounded piece of work; returns whether there was any. Called with the room's lock.
  virtual bool progress() = 0;
  virtual bool pending() const = 0;
};

/// The condition that a thread waits for.
class Goal {
 public:
  virtual ~Goal() = default;
  /// True once work has reached it. Called with the lock.
  virtual bool reached() const = 0;
  /// Called with the lock after work; throws to end the wait. `look_around` is true occasionally when nothing
  /// progresses: check for lost peers.
  virtual void check(bool look_around) = 0;
  /// False if work would not advance it, judged by one look. Called without the lock.
  virtual bool stirs() const { return true; }
  /// True if an awaited rank can run only while this thread does not.
  virtual bool shares_core() const = 0;
};

/// All groups of this process: a rank that waits in one of them works for the others meanwhile, because the awaited
/// rank may wait there.
class ProgressRoom {
 public:
  static ProgressRoom& process();

  /// Held while the state of any group is used.
  std::mutex mutex;

  void add(Worker* worker);
  void remove(Worker* worker);

  /// Works until the goal is reached. Stays awake for about the duration of a wake-up: spins, or yields the core to
  /// ranks that share it. Then sleeps at the door of this process's arena.
  void wait(Worker& own, Goal& goal);

 private:
  bool work(Worker& own, const Goal& goal);

  std::vector<Worker*> workers_;
  /// The last sleep ended so soon that staying awake would have been faster.
  std::atomic<bool> slept_in_vain_{false};
};

} // namespace trireme::comm::shm
