#pragma once

#include <tests/simulation/simulator.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace trireme::simulation {

/// One direction of a connection: what is sent arrives in order and late, or not at all once it is cut.
class SimulatedLink : public std::enable_shared_from_this<SimulatedLink> {
 public:
  explicit SimulatedLink(Simulator& simulator) : simulator_(simulator), last_(simulator.now()) {}

  void send(std::function<void()> arrive) {
    if (silent_) {
      held_.push_back(std::move(arrive));
      return;
    }
    last_ = std::max(last_ + std::chrono::nanoseconds(1), simulator_.now() + simulator_.delay());
    simulator_.after(last_ - simulator_.now(), [link = shared_from_this(), arrive = std::move(arrive)] {
      if (!link->cut_) {
        arrive();
      }
    });
  }
  /// What is on its way is lost.
  void cut() {
    cut_ = true;
    held_.clear();
  }
  /// Nothing arrives that is sent from now on, until it is false again: then all of it does.
  void set_silent(bool silent) {
    silent_ = silent;
    if (!silent) {
      for (auto& arrive : std::exchange(held_, {})) {
        send(std::move(arrive));
      }
    }
  }

 private:
  Simulator& simulator_;
  Clock::time_point last_;
  std::vector<std::function<void()>> held_;
  bool silent_ = false;
  bool cut_ = false;
};

} // namespace trireme::simulation
