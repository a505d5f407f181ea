#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::engine {

/// Parameters with their own learning rate or weight decay, like torch::optim::OptimizerParamGroup. The first group
/// that chooses a parameter counts. Parameters in no group have the optimizer's values.
struct ParameterGroup {
  /// Whether the group contains a parameter, by its name and sizes in the whole model, however tensor ranks, experts or
  /// tiles divide it. Called once per parameter; must give the same answer on every rank.
  std::function<bool(const std::string& name, const std::vector<int64_t>& sizes)> chooses = nullptr;
  /// Alternatively the parameters themselves, if the model is in one piece.
  std::vector<at::Tensor> parameters = {};
  /// Multiplies the lr of the optimizer or its schedule.
  double lr_factor = 1;
  /// Absent: the optimizer's; see "weight_decay_rule".
  std::optional<double> weight_decay = std::nullopt;
};

} // namespace trireme::engine
