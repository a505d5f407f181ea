#pragma once

#include <cstdint>
#include <functional>
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

/// All groups of this process: a rank that waits in one of them does the work of the others meanwhile, because the rank
/// it waits for may itself be waiting there.
class ProgressRoom {
 public:
  static ProgressRoom& process();

  /// Held while the state of any group is used.
  std::mutex mutex;

  /// `ranks`: how many share this host's cores with this process, as far as this group knows.
  void add(Worker* worker, int ranks);
  void remove(Worker* worker);

  /// Works and sleeps until `done`, which the work sets. Calls `check` between, with the lock; it throws to end this. Its
  /// argument is true once in a while when nothing goes on: time to look for lost peers.
  /// A short bounded spin where there are no more ranks than cores, then sleep at the door of this process's arena.
  void wait(Worker& own, const bool& done, const std::function<void(bool look_around)>& check);

 private:
  bool work(Worker& own);

  std::vector<Worker*> workers_;
  int ranks_ = 1;
};

} // namespace trireme::comm::shm
