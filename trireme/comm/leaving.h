#pragma once

#include <trireme/comm/roll_calls.h>

#include <map>
#include <set>

namespace trireme::comm {

/// Decides how long a leaving rank waits for the others. All functions are called with the Watch's mutex held.
class Leaving {
 public:
  using Clock = RollCalls::Clock;

  Leaving(int size, RollCalls& roll_calls) : size_(size), roll_calls_(roll_calls) {}

  /// Starts to leave. `waits`: wait for the others, until `deadline`.
  void begin(bool waits, Clock::time_point deadline) {
    begun_ = true;
    waits_ = waits;
    deadline_ = deadline;
    since_ = Clock::now();
  }
  bool begun() const { return begun_; }
  bool done() const { return done_; }
  bool under_way() const { return begun_ && !done_; }
  Clock::time_point deadline() const { return deadline_; }
  Clock::time_point since() const { return since_; }
  /// The other ranks at the last roll call.
  const std::map<int, PeerView>& others() const { return others_; }

  /// Ranks that do not answer, for which no rank waits any more.
  const std::map<int, PeerView>& silent() const { return silent_; }
  /// Checks whether the wait is over: `left` ranks have left, `dead` ones never will, and with `failed` waiting is
  /// useless. Makes occasional roll calls, so that a silently dead rank blocks no other. Returns done().
  bool step(int64_t left, const std::set<int>& dead, bool failed);

 private:
  const int size_;
  RollCalls& roll_calls_;
  bool begun_ = false;
  bool waits_ = true;
  bool done_ = false;
  Clock::time_point deadline_;
  Clock::time_point since_;
  std::map<int, PeerView> others_;
  bool others_are_new_ = false; // of farewell_
  std::map<int, PeerView> silent_;
  std::shared_ptr<RollCalls::Question> farewell_;
};

} // namespace trireme::comm
