#pragma once

#include <trireme/base/clock.h>
#include <trireme/base/error.h>

#include <tests/simulation/fiber.h>
#include <tests/simulation/random.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::simulation {

/// What a killed process gets of each call to the outside until its stack is unwound: it has no effect any more.
class Killed : public PeerError {
 public:
  Killed() : PeerError("simulation", "this process has been killed", "") {}
};

/// Processes on one thread, over a simulated clock, whose order, delays and ends follow from a seed: a seed repeats a
/// failure exactly. Real code runs in them, blocking where it blocks; what it calls is simulated: trireme::Clock and
/// sleep_for(), store::Client (simulated_store.h), rpc (simulated_rpc.h).
///
/// An event is a message that arrives, a timer, or a fault; between two of them no time passes and nothing else runs,
/// so code that does not block is atomic here. Threads are not simulated.
class Simulator final : private SimulatedTime {
 public:
  explicit Simulator(uint64_t seed);
  /// Unwinds the processes that are left.
  ~Simulator() override;
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  /// The one whose run() is on this thread.
  static Simulator& here();

  Random& random() { return random_; }
  Clock::time_point now() const override { return now_; }

  // -- Processes, by number from 0.

  /// Starts a process, now or `later`. It ends when `program` returns, throws or is killed.
  int start(std::string name, std::function<void()> program, Clock::duration later = {});
  /// As by SIGKILL: its connections end, and what it has sent arrives or is lost.
  void kill(int process);
  /// Kills it at its `count`-th call to the outside from now on, before or after what it sends there has left.
  void kill_at_call(int process, int64_t count, bool after);
  /// As by SIGSTOP and SIGCONT: what is sent to it waits.
  void pause(int process);
  void go_on(int process);
  /// Kills and unwinds all that are left; what simulates the outside does so before it goes.
  void end_processes();
  bool lives(int process) const;
  /// What it threw, "" for nothing; of one that was killed "killed".
  const std::string& end_of(int process) const;
  const std::string& name(int process) const;
  int processes() const { return static_cast<int>(processes_.size()); }

  // -- The schedule.

  void after(Clock::duration time, std::function<void()> event);
  /// Called after each event.
  void after_each_event(std::function<void()> check) { check_ = std::move(check); }
  /// Runs until no process lives and nothing is left to happen; false: `limit` has passed before, or violate() was
  /// called.
  bool run(Clock::duration limit);
  /// Something that must never happen has happened. Only the first one counts; run() ends.
  void violate(std::string what);
  const std::string& violation() const { return violation_; }
  /// One line of the story that is told of a failure: the last few hundred are kept.
  void note(std::string line);
  std::string story() const;

  // -- For what simulates the outside. Called by the process that runs.

  /// The process that runs, -1 for none: an event.
  int running() const { return running_; }
  /// Each call to the outside begins with it. Errors: Killed.
  void begin_call();
  /// And says here that what it sends has left. Errors: Killed.
  void sent();
  /// Blocks the process until `ready`, which wake() makes it look at. False: not by `deadline`. Errors: Killed.
  bool block_until(Clock::time_point deadline, const std::function<bool()>& ready);
  void wake(int process);
  /// Called once when the process ends in any way.
  void when_it_ends(int process, std::function<void()> action);
  /// How long a message travels: mostly some tenths of a millisecond, at times many milliseconds.
  Clock::duration delay();

 private:
  struct Process {
    std::string name;
    std::unique_ptr<Fiber> fiber;
    bool blocked = false;
    bool woken = false;
    bool paused = false;
    bool resumes_when_it_goes_on = false;
    bool killed = false;
    bool over = false;
    int complaints = 0;
    int64_t turn = 0; // a timer of an earlier one does nothing
    std::optional<int64_t> calls_left;
    bool dies_after = false;
    std::string end;
    std::vector<std::function<void()>> at_end;
  };
  struct Event {
    Clock::time_point time;
    uint64_t order;
    std::function<void()> action;
  };

  void sleep_until(Clock::time_point time) override;
  void at(Clock::time_point time, std::function<void()> event);
  void resume(int process);
  void finish(int process);
  void count_call(bool after);
  Process& of(int process) { return *processes_.at(static_cast<size_t>(process)); }
  const Process& of(int process) const { return *processes_.at(static_cast<size_t>(process)); }

  Random random_;
  Clock::time_point now_;
  std::vector<Event> events_; // a heap
  uint64_t events_made_ = 0;
  std::vector<std::unique_ptr<Process>> processes_;
  int running_ = -1;
  int living_ = 0;
  std::function<void()> check_;
  std::string violation_;
  std::deque<std::string> story_;
};

} // namespace trireme::simulation
