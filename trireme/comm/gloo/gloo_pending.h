#pragma once

#include <trireme/comm/backend.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace trireme::comm {

class GlooMessage;

/// State shared by the operations of one gloo group.
struct GlooShared : std::enable_shared_from_this<GlooShared> {
  std::mutex mutex;
  std::condition_variable changed;
  bool interrupted = false;
  /// gloo's own thread died holding locks (terminate_guard.h): gloo must not be used any more.
  bool wedged = false;
  /// Messages in a thread's wait().
  std::set<GlooMessage*> waiting;
  /// Calls of gloo that end every operation in flight with an error. Empty when there is nothing to break (any more).
  std::function<void()> break_context;

  /// Calls break_context once, and returns when it is done or gloo's thread has died. In that case gloo's locks are
  /// never released, so the calls run in their own thread, without the mutex. `lock` holds the mutex, before and after.
  void break_connections(std::unique_lock<std::mutex>& lock);

  /// Makes every wait() fail.
  void interrupt();
  /// interrupt() after the death of gloo's thread.
  void wedge();

 private:
  void interrupt_locked();

  bool breaking_ = false;
};

using Deadline = std::chrono::steady_clock::time_point;

/// A collective that runs on gloo's worker threads.
class GlooCollective : public Pending {
 public:
  /// `after` runs on the worker thread when gloo is done, before it counts as done.
  GlooCollective(const c10::intrusive_ptr<c10d::Work>& work, std::shared_ptr<GlooShared> shared, Deadline deadline,
                 std::function<void()> after);
  ~GlooCollective() override;
  void wait() override;
  bool done() override;

 private:
  struct Outcome {
    bool done = false;
    std::exception_ptr error;
  };
  std::shared_ptr<GlooShared> shared_;
  std::shared_ptr<Outcome> outcome_;
  Deadline deadline_;
  int exceptions_at_start_;
  bool gave_up_ = false;
};

/// A send or recv. Its time counts from the first wait, because a receive may be posted long before the peer has
/// data. gloo completes it without our threads but cannot be polled: the first done() starts a thread that
/// waits.
class GlooMessage : public Pending {
 public:
  GlooMessage(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<GlooShared> shared,
              std::chrono::milliseconds timeout);
  ~GlooMessage() override;
  void wait() override;
  bool done() override;
  /// Wakes up a wait() with an error. The caller holds the shared mutex.
  void abort_locked();

 private:
  void block();

  c10::intrusive_ptr<c10d::Work> work_;
  std::shared_ptr<GlooShared> shared_;
  std::chrono::milliseconds timeout_;
  int exceptions_at_start_;
  bool finished_ = false;
  std::exception_ptr error_;
  std::thread waiter_;
};

} // namespace trireme::comm
