#pragma once

#include <trireme/engine/step_scale.h>

#include <nlohmann/json.hpp>

#include <cstdint>

namespace trireme::engine {

/// An engine's position, as a checkpoint stores it. Optimizer, schedule, loader and GradientSync store their own.
struct StepState {
  int64_t micro_steps = 0;
  int64_t global_steps = 0;
  int64_t skipped_steps = 0;
  int64_t global_samples = 0;
  StepScale scale;
  nlohmann::json chosen_ways; // the choice of "auto" for activations; null: none yet

  /// Whether the next micro-batch is the last of its step.
  bool at_boundary(int64_t accumulation) const { return (micro_steps + 1) % accumulation == 0; }
};

} // namespace trireme::engine
