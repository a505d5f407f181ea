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

  /// bf16 must be at least 5 % faster to be worth the lower precision, whatever the noise.
  bool bf16_is_faster() const { return bf16 < 0.95 * fp32; }
};

/// Measures both types in turn on `device` (on the CPU with this process's threads), and takes the best time of each.
/// On a GPU the model is large enough that computation takes longer than kernel launches. Restores the random
/// generators. Cost: about a second; a few if the CPU has no bf16 instructions.
StepSeconds time_small_gpt(at::Device device);

/// Resolves `bf16_if_faster` for training on `device`: sets `compute` to bf16 or fp32, the same on every rank of
/// `everyone`. If `resumed` is a checkpoint, or a folder of checkpoints, uses its type. Otherwise compares the sums of
/// the times that `measure` returns on all ranks, which measure at the same time, as they will train. Does nothing if
/// the type is known. Collective. The CPU multiplies bf16 and fp16 as precision::multiply_halves_in_fp32() says from
/// now on.
void resolve_precision(precision::PrecisionOptions& precision, const comm::Group& everyone, at::Device device,
                       const std::optional<std::filesystem::path>& resumed = std::nullopt,
                       const std::function<StepSeconds(at::Device)>& measure = time_small_gpt);

} // namespace trireme::engine
