#include <trireme/base/clock.h>

#include <thread>
#include <utility>

namespace trireme {
namespace {

thread_local SimulatedTime* simulated = nullptr;

} // namespace

Clock::time_point Clock::now() {
  return simulated == nullptr ? std::chrono::steady_clock::now() : simulated->now();
}

void sleep_for(Clock::duration time) {
  if (simulated == nullptr) {
    std::this_thread::sleep_for(time);
  } else {
    simulated->sleep_until(simulated->now() + time);
  }
}

SimulatedTime* SimulatedTime::install(SimulatedTime* time) {
  return std::exchange(simulated, time);
}

} // namespace trireme
