#pragma once

#include <trireme/engine/step_scale.h>

#include <nlohmann/json.hpp>

#include <cstdint>

namespace trireme::engine {

/// Where an engine is, as a checkpoint keeps it; the optimizer, the schedule, the loader and the GradientSync keep
/// their own.
struct StepState {
  int64_t micro_steps = 0;
  int64_t global_steps = 0;
  int64_t skipped_steps = 0;
  int64_t global_samples = 0;
  StepScale scale;
  nlohmann::json chosen_ways; // what "auto" has chosen for activations; null: nothing

  /// Whether the next micro-batch is the last of its step.
  bool at_boundary(int64_t accumulation) const {
    return (micro_steps + 1) % accumulation == 0;
  }
};

} // namespace trireme::engine
