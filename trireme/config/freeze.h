#pragma once

#include <string>
#include <vector>

namespace trireme::config {

/// "training.freeze": which parameters of a model are not trained.
struct FreezeOptions {
  /// A regular expression (std::regex, ECMAScript, without references back to a bracket), searched for in names of
  /// parameters in checkpoints; upper and lower case differ.
  struct Expression {
    std::string text;
    /// Where it is written: "run.json:7:15: training.freeze[1]".
    std::string place;
  };
  std::vector<Expression> expressions = {};

  bool on() const { return !expressions.empty(); }
};

/// For each of these names, whether an expression matches a part of it. Cost: names times the lengths of name and
/// expressions. Errors: InputError with the place of an expression that cannot be used.
std::vector<bool> frozen_among(const FreezeOptions& options, const std::vector<std::string>& names);

/// The same for the names of all parameters of a model. Errors: InputError also for an expression that matches none,
/// which names the nearest, and where all match: then nothing is left to train.
std::vector<bool> frozen_of_all(const FreezeOptions& options, const std::vector<std::string>& names);

} // namespace trireme::config
