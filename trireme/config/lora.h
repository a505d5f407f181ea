#pragma once

#include <trireme/config/expressions.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme {
class JsonNode;
}

namespace trireme::config {

class Values;
struct RunConfig;

/// "training.lora": low-rank adapters of a language model or a bert (models::LoraOptions has what follows from it).
struct LoraConfig {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  /// Searched for in names of linear layers, "model.layers.0.self_attn.q_proj". Empty: PEFT's for the model's type.
  std::vector<Expression> targets = {};
};

/// Reads the section; none if it is absent.
std::optional<LoraConfig> read_lora(const Values& values);

/// Fills in the adapters of the run's model from training.lora and "model.adapter", or both if they agree, and freezes
/// everything else. Errors: InputError with the place of a target that matches no linear layer, of adapters for a model
/// that has none, and of an adapter that does not fit.
void check_lora(const JsonNode& root, RunConfig& run);

/// Shortest endings of names that name exactly `layers` among `all`: "q_proj", or full names where there are none.
std::vector<std::string> target_endings(const std::set<std::string>& layers, const std::vector<std::string>& all);

} // namespace trireme::config
