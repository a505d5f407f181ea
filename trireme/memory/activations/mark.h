#pragma once

#include <trireme/device/stream.h>

#include <chrono>

namespace trireme::activations {

/// A point in time of the computation: of the device's clock if there is one, else of the host's.
class Mark {
 public:
  explicit Mark(at::Device device) : device_(device), event_(device.type(), /*timed=*/true) {}

  void now() {
    event_.record(device::current_stream(device_));
    time_ = std::chrono::steady_clock::now();
    set_ = true;
  }
  bool set() const { return set_; }
  void forget() { set_ = false; }
  /// Both must be set; on a device the host must have waited for them.
  double seconds_since(const Mark& earlier) const {
    return device_.is_cpu() ? std::chrono::duration<double>(time_ - earlier.time_).count()
                            : event_.seconds_since(earlier.event_);
  }
  void wait() const { event_.synchronize(); }

 private:
  at::Device device_;
  device::Event event_;
  std::chrono::steady_clock::time_point time_;
  bool set_ = false;
};

} // namespace trireme::activations
