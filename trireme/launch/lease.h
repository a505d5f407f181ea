#pragma once

#include <trireme/launch/place.h>

#include <algorithm>
#include <chrono>
#include <optional>

// A host may run ranks only while it holds a lease, so that two starts of one job never overlap, although a silent host
// cannot be asked ("Leases", Gray and Cheriton, 1989). Each beat of an agent requests a new lease, and the launcher's
// answer grants it:
//
//   agent     asks at its own time t          -->  launcher  answers at g
//   its guardian ends the ranks at t + length <--  the launcher starts no others before g + length + margin
//
// t comes before g, so any delay of messages only makes the agent's lease shorter than the
// launcher counts. The agent's clock includes sleep of its machine, the launcher's does not:
// both err on the safe side. Assumed: the clocks of two hosts run at rates that differ by less
// than 1 %, and a running guardian ends its ranks within a second. Processes that a stopped
// guardian or a paused virtual machine leaves are refused by the run folder's token
// (base/run_token.h).
namespace trireme::launch {

/// Time of one host, sleep included. Comparable among the processes of that host only.
using HostTime = std::chrono::nanoseconds;
HostTime host_time();

/// Length of a lease in heartbeat time-outs: a launcher may be stopped for that long without losing a host.
inline constexpr double kHeartbeatsOfALease = 3;
/// The guardian waits this much longer than its agent, which can report the reason.
inline constexpr std::chrono::milliseconds kGuardianLater{250};

/// The lease as the host counts it.
class Lease {
 public:
  explicit Lease(HostTime length) : length_(length) {}

  /// The launcher has answered the request of time `asked`. Answers may come late and in any order.
  void granted(HostTime asked) { until_ = std::max(until_, asked + length_); }
  HostTime until() const { return until_; }
  bool held(HostTime now) const { return now < until_; }
  HostTime length() const { return length_; }

 private:
  HostTime length_;
  HostTime until_{0};
};

/// The same lease as the launcher counts it.
class GrantedLease {
 public:
  explicit GrantedLease(double seconds)
      : span_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(seconds * kClockRates + kEndOfRanks))) {}

  void answered(Clock::time_point now) { over_at_ = now + span_; }
  /// After that time no rank of the host runs, in any case. nullopt: it never had a lease.
  std::optional<Clock::time_point> over_at() const { return over_at_; }

 private:
  static constexpr double kClockRates = 1.01;
  static constexpr double kEndOfRanks = 1.25; // seconds, kGuardianLater included

  Clock::duration span_;
  std::optional<Clock::time_point> over_at_;
};

} // namespace trireme::launch
