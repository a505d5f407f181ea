#pragma once

#include <c10/core/Device.h>

namespace trireme::models {

/// Seconds of forward and backward of a small GPT.
struct StepSeconds {
  double fp32 = 0;
  double bf16 = 0;

  /// bf16 must be at least 5 % faster to be worth the lower precision, whatever the noise.
  bool bf16_is_faster() const { return bf16 < 0.95 * fp32; }
};

/// Measures both types in turn on `device` (on the CPU with this process's threads), and takes the best time of each.
/// On a GPU the model is large enough that computation takes longer than kernel launches. Restores the random
/// generators. Cost: about a second; a few if the CPU has no bf16 instructions.
StepSeconds time_small_gpt(c10::Device device);

} // namespace trireme::models
