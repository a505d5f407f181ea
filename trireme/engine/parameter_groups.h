#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::engine {

/// Parameters with a learning rate or a weight decay of their own, as a torch::optim::OptimizerParamGroup has them. If
/// several groups choose a parameter, the first one counts; a parameter that no group chooses has the optimizer's
/// values.
struct ParameterGroup {
  /// Whether a parameter is in it, by its name and sizes. Both are the whole model's, however tensor ranks, experts or
  /// tiles divide it. Asked once for each; the same answer on every rank.
  std::function<bool(const std::string& name, const std::vector<int64_t>& sizes)> chooses = nullptr;
  /// Or the parameters themselves, of a model in one piece.
  std::vector<at::Tensor> parameters = {};
  /// Times the lr of the optimizer or its schedule.
  double lr_factor = 1;
  /// Absent: the optimizer's, see "weight_decay_rule".
  std::optional<double> weight_decay = std::nullopt;
};

} // namespace trireme::engine
