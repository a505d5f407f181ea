#pragma once

#include <trireme/device/stream.h>

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace trireme::device {

/// Device time of one phase of a step, summed over the phase's stretches. A stretch lasts from when the device reaches
/// its begin on the current stream until it reaches its end. It includes time in which the stream waits for launches of
/// the host or for other streams.
///
/// The host never waits for a time: it is read when the device is known to be done. Cost: two events per stretch, which
/// are reused. One thread at a time.
class PhaseTimer {
 public:
  /// On the CPU all times are 0.
  explicit PhaseTimer(at::Device device) : device_(device) {}

  void begin();
  /// Ends the stretch. If the device has failed, the stretch is dropped; the error is reported elsewhere.
  void end() noexcept;

  /// Ends the step: later stretches belong to the next step.
  void next_step();
  /// Drops the stretches of a step that has not ended.
  void drop();

  /// Seconds of the newest ended step that the device has finished; 0 before there is one. The step that ended last is
  /// checked only if the host has waited for the device since its last stretch: before that it cannot be finished.
  double seconds();

 private:
  struct Stretch {
    Event begin;
    Event end;
  };
  struct Step {
    std::vector<Stretch> stretches;
    int64_t waits = 0; // of the host, by the end of its last stretch
  };
  bool passed(const Step& step) const;
  void free(Step& step);

  at::Device device_;
  Step running_;
  bool open_ = false;
  std::deque<Step> ended_; // oldest first
  std::vector<Stretch> spare_;
  double seconds_ = 0;
};

} // namespace trireme::device
