#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme {
class JsonNode;
}

namespace trireme::config {

/// A program's values for "auto" in a configuration, as Hugging Face's Trainer fills them in from its
/// arguments. The defaults are the Trainer's.
struct AutoValues {
  /// train_micro_batch_size_per_gpu, where the file has no batch size at all.
  int64_t micro_batch = 8;
  /// Learning rate of the optimizer. Its betas, eps and weight_decay are the optimizer's own defaults.
  double lr = 5e-5;
  /// warmup_num_steps.
  int64_t warmup_steps = 0;
  /// Optimizer steps of the whole run: total_num_steps. Absent: "auto" is an error.
  std::optional<int64_t> steps = std::nullopt;
  /// Width of the model (hidden_size): reduce_bucket_size is its square, stage3_prefetch_bucket_size 0.9 of that,
  /// stage3_param_persistence_threshold 10 times the width. Absent: their default values.
  std::optional<int64_t> hidden = std::nullopt;
};

/// Replaces each "auto" whose value is known, and lists the values in one sentence of `notes`. The others stay;
/// that of bf16.enabled is resolved by the engine, which measures. Errors: InputError for total_num_steps without
/// AutoValues::steps.
void fill_auto(JsonNode& engine, const AutoValues& known, std::vector<std::string>& notes);

} // namespace trireme::config
