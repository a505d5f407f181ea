#include <trireme/engine/step_clock.h>

#include <trireme/device/host_waits.h>

#include <tuple>

namespace trireme::engine {

using Clock = std::chrono::steady_clock;

void StepClock::measure_on(at::Device device) {
  if (!device.is_cpu()) {
    on_device_.emplace(device);
  }
}

void StepClock::start() {
  running_ = StepTimes();
  schedule_.reset();
  waits_before_ = device::host_waits();
  start_ = Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(loading_));
  waiting_before_ = waiting();
}

void StepClock::end(double schedule) {
  running_.exposed_communication = this->waiting() - waiting_before_ + schedule;
  running_.data = std::exchange(loading_, 0);
  running_.total = std::chrono::duration<double>(Clock::now() - start_).count();
  if (on_device_) {
    read_device();
  }
  if (schedule_) {
    std::tie(running_.forward, running_.backward) = *schedule_;
  }
  host_syncs_ = device::host_waits() - waits_before_;
  times_ = running_;
}

// The host has waited for this step's forward and backward, and for the previous step's optimizer.
void StepClock::read_device() {
  for (device::PhaseTimer* phase : {&on_device_->forward, &on_device_->backward, &on_device_->optimizer}) {
    phase->next_step();
  }
  running_.forward = on_device_->forward.seconds();
  running_.backward = on_device_->backward.seconds();
  running_.optimizer = on_device_->optimizer.seconds();
}

} // namespace trireme::engine
