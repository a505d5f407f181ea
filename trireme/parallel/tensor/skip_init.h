#pragma once

namespace trireme::tensor {

/// While one exists that is on, the layers of layers.h that this thread builds have memory without values, and draw
/// almost no random numbers (torch.nn.utils.skip_init in Python). For models whose values are read from a file:
/// drawing 135M numbers takes 0.4 s.
class SkipInit {
 public:
  explicit SkipInit(bool on) : before_(skips_) { skips_ = skips_ || on; }
  ~SkipInit() { skips_ = before_; }
  SkipInit(const SkipInit&) = delete;
  SkipInit& operator=(const SkipInit&) = delete;

  /// Whether there is one in this thread.
  static bool is_on() { return skips_; }

 private:
  inline static thread_local bool skips_ = false;

  bool before_;
};

} // namespace trireme::tensor
