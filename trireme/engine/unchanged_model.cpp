#include <trireme/engine/unchanged_model.h>

#include <trireme/base/error.h>

#include <torch/nn/module.h>

namespace trireme::engine {

UnchangedModel::UnchangedModel(const torch::nn::Module& model, std::vector<const bucket::FlatParameters*> buffers)
    : buffers_(std::move(buffers)) {
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad()) {
      frozen_.emplace_back(item.key(), item.value());
    }
  }
}

void UnchangedModel::check() const {
  for (const bucket::FlatParameters* buffer : buffers_) {
    if (const std::optional<int64_t> moved = buffer->moved_away()) {
      throw InputError("engine",
                       concat("parameter \"", buffer->name(*moved),
                              "\" is no longer in the engine's memory: torch::load(), to() or set_data() after "
                              "initialize() has replaced its tensor, and the new one would not be trained"),
                       "Load and convert the model before initialize(). Afterwards change values in place: under "
                       "torch::NoGradGuard and inside gather_parameters(), parameter.copy_(values).");
    }
  }
  for (const auto& [name, parameter] : frozen_) {
    if (parameter.requires_grad()) {
      throw InputError(
          "engine",
          concat("parameter \"", name,
                 "\" was frozen when the engine was made, but requires a gradient now: it would not be trained"),
          "Unfreeze it before initialize(), or destroy this engine and make another one.");
    }
  }
}

} // namespace trireme::engine
