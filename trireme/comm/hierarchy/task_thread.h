#pragma once

#include <trireme/comm/backend.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace trireme::comm {

/// Runs tasks one after the other on a thread of its own, each behind a Pending.
///
/// The first task that throws ends the queue: those after it and to come fail with the same error, because their peers
/// would wait for this rank in vain.
class TaskThread {
 public:
  /// `interrupt` makes the task that runs end with an error. It is called when an operation is given up by an
  /// exception: the peers wait for this rank in vain, and it must say so at once.
  explicit TaskThread(std::function<void()> interrupt);
  /// Tasks not begun fail; the one that runs is waited for (who calls makes it end).
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
