#include <trireme/engine/step_clock.h>

namespace trireme::engine {

using Clock = std::chrono::steady_clock;

void StepClock::start() {
  running_ = StepTimes();
  start_ = Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(loading_));
  waiting_before_ = waiting();
}

void StepClock::end(double schedule) {
  running_.exposed_communication = this->waiting() - waiting_before_ + schedule;
  running_.data = std::exchange(loading_, 0);
  running_.total = std::chrono::duration<double>(Clock::now() - start_).count();
  times_ = running_;
}

} // namespace trireme::engine
