#include <trireme/device/phase_timer.h>

#include <trireme/device/host_waits.h>

#include <algorithm>
#include <exception>
#include <iterator>

namespace trireme::device {

void PhaseTimer::begin() {
  if (open_) { // its end was not recorded
    running_.stretches.pop_back();
  }
  open_ = false;
  if (spare_.empty()) {
    spare_.push_back({Event(device_.type(), /*timed=*/true), Event(device_.type(), /*timed=*/true)});
  }
  spare_.back().begin.record(current_stream(device_));
  running_.stretches.push_back(std::move(spare_.back()));
  spare_.pop_back();
  open_ = true;
}

void PhaseTimer::end() noexcept {
  if (!open_) {
    return;
  }
  open_ = false;
  try {
    running_.stretches.back().end.record(current_stream(device_));
    running_.waits = host_waits();
  } catch (const std::exception&) {
    running_.stretches.pop_back();
  }
}

void PhaseTimer::next_step() {
  ended_.push_back(std::exchange(running_, {}));
}

void PhaseTimer::drop() {
  open_ = false;
  free(running_);
}

bool PhaseTimer::passed(const Step& step) const {
  const bool newest = &step == &ended_.back();
  if (newest && !step.stretches.empty() && step.waits == host_waits()) {
    return false;
  }
  return std::all_of(step.stretches.begin(), step.stretches.end(),
                     [](const Stretch& one) { return one.begin.done() && one.end.done(); });
}

double PhaseTimer::seconds() {
  const auto newest = std::find_if(ended_.rbegin(), ended_.rend(), [this](const Step& step) { return passed(step); });
  if (newest == ended_.rend()) {
    return seconds_;
  }
  seconds_ = 0;
  for (const Stretch& stretch : newest->stretches) {
    seconds_ += stretch.end.seconds_since(stretch.begin);
  }
  for (auto left = ended_.rend() - newest; left > 0; --left) {
    free(ended_.front());
    ended_.pop_front();
  }
  return seconds_;
}

void PhaseTimer::free(Step& step) {
  spare_.insert(spare_.end(), std::make_move_iterator(step.stretches.begin()),
                std::make_move_iterator(step.stretches.end()));
  step = {};
}

} // namespace trireme::device
