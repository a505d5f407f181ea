#pragma once

#include <chrono>

namespace trireme {

/// The clock of the protocols of store, rpc, launch and extensions/server: the machine's monotonic clock, or the
/// simulation's in a simulated thread. Cost: std::chrono::steady_clock's and one read of a thread-local variable.
struct Clock {
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  static time_point now();
};

/// Blocks this thread, or in a simulation the simulated process.
void sleep_for(Clock::duration time);

/// Replaces the machine's clock in one thread, for tests that simulate time.
class SimulatedTime {
 public:
  virtual ~SimulatedTime() = default;
  virtual Clock::time_point now() const = 0;
  virtual void sleep_until(Clock::time_point time) = 0;

  /// Installs `time` in this thread; nullptr restores the machine's clock. Returns the one installed before.
  static SimulatedTime* install(SimulatedTime* time);
};

} // namespace trireme
