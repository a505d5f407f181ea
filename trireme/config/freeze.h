#pragma once

#include <trireme/config/expressions.h>
#include <trireme/models/options.h>

#include <optional>
#include <string>
#include <vector>

namespace trireme::config {

/// "training.freeze" and "training.lora": which parameters of a model are not trained.
struct FreezeOptions {
  /// Searched for in names of parameters in checkpoints.
  std::vector<Expression> expressions = {};
  /// All parameters but those that these adapters train, in addition.
  std::optional<models::LoraOptions> lora = {};

  bool on() const { return !expressions.empty() || lora; }
};

/// For each of these names, whether it is frozen. Cost: names times the lengths of name and expressions. Errors:
/// InputError with the place of an expression that cannot be used.
std::vector<bool> frozen_among(const FreezeOptions& options, const std::vector<std::string>& names);

/// The same for the names of all parameters of a model. Errors: InputError also for an expression that matches none,
/// which names the nearest, and where all match: then nothing is left to train.
std::vector<bool> frozen_of_all(const FreezeOptions& options, const std::vector<std::string>& names);

} // namespace trireme::config
