#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace trireme::engine {

/// Evaluation mode while it lives; then every module of the tree is in the mode it was in, so that a frozen BatchNorm, in evaluation
/// mode inside of a model in training, stays frozen.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& model) : model_(model), was_training_(model.is_training()) {
    for (const auto& module : model.modules(/*include_self=*/false)) {
      below_.emplace_back(module, module->is_training());
    }
    model.eval();
  }
  ~EvaluationMode() {
    model_.train(was_training_);
    for (const auto& [module, was_training] : below_) { // parents first
      if (module->is_training() != was_training) {
        module->train(was_training);
      }
    }
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& model_;
  bool was_training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> below_;
};

} // namespace trireme::engine
