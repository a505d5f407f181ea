#pragma once

#include <trireme/comm/group.h>
#include <trireme/models/small_step.h>
#include <trireme/precision/options.h>

#include <filesystem>
#include <functional>
#include <optional>

namespace trireme::engine {

/// Resolves `bf16_if_faster` for training on `device`: sets `compute` to bf16 or fp32, the same on every rank of
/// `everyone`. If `resumed` is a checkpoint, or a folder of checkpoints, uses its type. Otherwise compares the sums of
/// the times that `measure` returns on all ranks, which measure at the same time, as they will train. Does nothing if
/// the type is known. Collective. The CPU multiplies bf16 and fp16 as precision::multiply_halves_in_fp32() says from
/// now on.
void resolve_precision(precision::PrecisionOptions& precision, const comm::Group& everyone, at::Device device,
                       const std::optional<std::filesystem::path>& resumed = std::nullopt,
                       const std::function<models::StepSeconds(at::Device)>& measure = models::time_small_gpt);

} // namespace trireme::engine
