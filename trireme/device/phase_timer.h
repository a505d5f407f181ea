#pragma once

#include <trireme/device/stream.h>

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace trireme::device {

/// How long a device takes for one phase of a step, the sum over the phase's stretches. A stretch goes from where the
/// device comes past its begin on the current stream to where it comes past its end: while it lasts, the stream may
/// also wait for launches of the host or for other streams.
///
/// The host never waits for a time: it is read when the device is known to be done. Cost: two events a stretch, which
/// are used again. One thread at a time.
class PhaseTimer {
 public:
  /// On the CPU every time is 0.
  explicit PhaseTimer(at::Device device) : device_(device) {}

  void begin();
  /// Ends the stretch. A device that has failed is somebody else's error: the stretch is forgotten.
  void end() noexcept;

  /// Ends the phase of this step: stretches from now on are the next step's.
  void next_step();
  /// Forgets the stretches of a step that is not ended.
  void drop();

  /// Seconds of the newest step that ended and that the device is done with; 0 before there is one. The step that ended
  /// last is looked at only if the host has waited for the device since its last stretch: asking earlier would be in
  /// vain.
  double seconds();

 private:
  struct Stretch {
    Event begin;
    Event end;
  };
  struct Step {
    std::vector<Stretch> stretches;
    int64_t waits = 0; // of the host, when its last stretch ended
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
