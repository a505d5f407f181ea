#pragma once

#include <trireme/parallel/pipeline/schedule.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// Options of a pipeline.
struct PipelineOptions {
  /// Number of pipeline stages. The number of data-parallel replicas is ranks / stages.
  int stages = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  /// A custom schedule instead of `schedule`; it is checked before step 0 like the built-in ones.
  ScheduleFunction custom_schedule = {};
  /// Parts that each stage holds of the model (virtual stages); more than 1 for `interleaved`.
  int chunks = 1;

  /// Quantity to balance over the stages: "parameters", "uniform" (number of layers), "type:REGEX" (layers whose class
  /// name contains a match), "profile" (measured forward and backward time) or "memory" (parameters, their states and
  /// the activations in flight).
  std::string partition = "parameters";
  /// Layer index at which each part begins, then the number of layers; overrides `partition`.
  std::vector<int64_t> bounds = {};
  /// Allows more parts than layers; the surplus parts pass their inputs on.
  bool allow_empty_stages = false;

  /// Layers per recomputed group in backward; 0: activations are kept.
  int64_t activation_checkpoint_interval = 0;
  /// Seeds every layer's construction with base_seed + index and its forward by base_seed, micro-batch
  /// and index, so that weights and dropout do not depend on the partition.
  bool seed_layers = false;
  int64_t base_seed = 1234;
};

/// Pipeline options of a configuration. Unset options keep the program's values.
struct PipelineKeys {
  std::optional<int> stages;
  std::optional<std::string> partition;
  std::optional<bool> seed_layers;
  std::optional<int64_t> activation_checkpoint_interval;

  /// Returns `options` with the values that are set here.
  PipelineOptions over(PipelineOptions options) const {
    options.stages = stages.value_or(options.stages);
    options.partition = partition.value_or(options.partition);
    options.seed_layers = seed_layers.value_or(options.seed_layers);
    options.activation_checkpoint_interval =
        activation_checkpoint_interval.value_or(options.activation_checkpoint_interval);
    return options;
  }
};

} // namespace trireme::pipeline
