#pragma once

#include <trireme/comm/backend.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace trireme::comm {

/// Runs tasks in order on its own thread, each behind a Pending.
///
/// The first task that throws ends the queue: all others fail with the same error, because their peers would wait for
/// this rank forever.
class TaskThread {
 public:
  /// `interrupt` makes the current task end with an error. It is called when an exception gives up an operation: the
  /// peers wait for this rank, which must report it at once.
  explicit TaskThread(std::function<void()> interrupt);
  /// Tasks not begun fail; the current one is waited for (the caller must make it end).
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  std::shared_ptr<Pending> run(std::function<void()> task);

 private:
  struct Shared;
  class Ticket;

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

} // namespace trireme::comm
