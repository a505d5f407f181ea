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

/// Measures both types in turn on `device`, on the CPU with this process's threads, and takes the best of each. On a
/// GPU the model is so large that its arithmetic takes longer than the launch of its kernels. Random numbers go on as
/// if nothing had happened. Cost: about a second; a few where bf16 has no instructions.
StepSeconds time_small_gpt(at::Device device);

/// Resolves `bf16_if_faster` for a training on `device`: sets `compute` to bf16 or fp32, the same on every rank of
/// `everyone`. Uses the type of the checkpoint in `resumed` (a checkpoint, or the folder above) if there is one; else
/// the sum of the times that `measure` returns on all ranks, which measure at the same time, as they will train. Does
/// nothing if the type is known. Collective.
void resolve_precision(precision::PrecisionOptions& precision, const comm::Group& everyone, at::Device device,
                       const std::optional<std::filesystem::path>& resumed = std::nullopt,
                       const std::function<StepSeconds(at::Device)>& measure = time_small_gpt);

} // namespace trireme::engine
