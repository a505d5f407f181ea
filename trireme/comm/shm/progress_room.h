#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace trireme::comm::shm {

/// Someone who has things to do for others.
class Worker {
 public:
  virtual ~Worker() = default;
  /// Does a bounded piece of work and says whether there was any. Called with the lock of the room.
  virtual bool progress() = 0;
  virtual bool pending() const = 0;
};

/// What a thread waits for.
class Goal {
 public:
  virtual ~Goal() = default;
  /// Work has reached it. Called with the lock.
  virtual bool reached() const = 0;
  /// Called with the lock after work; throws to end the wait. `look_around` is true once in a while when nothing goes
  /// on: time to look for lost peers.
  virtual void check(bool look_around) = 0;
  /// False: work would bring it no nearer, as far as a glance shows. Called without the lock.
  virtual bool stirs() const {
    return true;
  }
  /// Someone who is waited for can run only when this thread does not.
  virtual bool shares_core() const = 0;
};

/// All groups of this process: a rank that waits in one of them does the work of the others meanwhile, because the rank
/// it waits for may itself be waiting there.
class ProgressRoom {
 public:
  static ProgressRoom& process();

  /// Held while the state of any group is used.
  std::mutex mutex;

  void add(Worker* worker);
  void remove(Worker* worker);

  /// Works until the goal is reached. Stays awake for about as long as a wake-up takes: spins, or yields the core to
  /// ranks that share it. Then sleeps at the door of this process's arena.
  void wait(Worker& own, Goal& goal);

 private:
  bool work(Worker& own, const Goal& goal);

  std::vector<Worker*> workers_;
  /// The last sleep was over so soon that staying awake would have been quicker.
  std::atomic<bool> slept_in_vain_{false};
};

} // namespace trireme::comm::shm
