#pragma once

#include <trireme/parallel/pipeline/module.h>

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace trireme::engine {

/// Puts a model into evaluation mode during its lifetime, then restores the mode of each module: a frozen BatchNorm, in
/// evaluation mode inside a training model, stays frozen.
class EvaluationMode {
 public:
  /// `list`: the model if it is a list of layers, which are not its children; otherwise null.
  explicit EvaluationMode(torch::nn::Module& model, const pipeline::PipelineModule* list = nullptr)
      : model_(model), was_training_(model.is_training()) {
    note(model, /*include_self=*/false);
    if (list != nullptr) {
      for (const auto& layer : list->layer_modules()) {
        note(*layer, /*include_self=*/true);
      }
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
  void note(const torch::nn::Module& root, bool include_self) {
    for (const auto& module : root.modules(include_self)) {
      below_.emplace_back(module, module->is_training());
    }
  }

  torch::nn::Module& model_;
  bool was_training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> below_;
};

} // namespace trireme::engine
