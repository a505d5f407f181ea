#pragma once

#include <trireme/comm/group.h>
#include <trireme/precision/options.h>

#include <filesystem>
#include <functional>
#include <optional>

namespace trireme::engine {

/// Seconds of forward and backward of a small GPT.
struct StepSeconds {
  double fp32 = 0;
  double bf16 = 0;

  /// By so much that it is worth the lower precision, whatever the noise: 5 %.
  bool bf16_is_faster() const {
    return bf16 < 0.95 * fp32;
  }
};

/// Measures both types in turn with this process's threads and takes the best of each. Random numbers go on as if nothing had happened.
/// Cost: about a second; a few where bf16 has no instructions.
StepSeconds time_small_gpt();

/// Settles `bf16_if_faster`: `compute` becomes bf16 or fp32, the same on every rank of `everyone`. With the type of the checkpoint in `resumed` (a
/// checkpoint, or the folder above), when there is one; else by the sum of what `measure` finds on all ranks at once, as they will
/// train. Does nothing where the type is settled. Collective.
void settle_precision(precision::PrecisionOptions& precision, const comm::Group& everyone, const std::optional<std::filesystem::path>& resumed = std::nullopt,
                      const std::function<StepSeconds()>& measure = time_small_gpt);

} // namespace trireme::engine
