#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

namespace trireme::zero {

class ParameterCoordinator;

/// While it lives, these parameters are whole on every rank. Made by Engine::gather_parameters(). Collective at both
/// ends.
///
///   {
///     const auto whole = engine.gather_parameters({net->head->weight}, /*modifier=*/0);
///     if (world.rank() == 0) { net->head->weight.zero_(); }
///   } // rank 0's values are everybody's now
///
/// It must not live over a step or load_checkpoint(), which change the shards: the engine refuses them where something
/// is sharded. Without a modifier rank changes are lost. Where nothing is sharded it does nothing but send the
/// modifier's values. It may outlive the engine: the parameters stay readable, and a modifier's changes stay that
/// rank's own.
class GatheredParameters {
 public:
  GatheredParameters(std::shared_ptr<ParameterCoordinator> coordinator, std::vector<at::Tensor> parameters,
                     std::optional<int> modifier);
  ~GatheredParameters();
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;

 private:
  std::shared_ptr<ParameterCoordinator> coordinator_;
  std::vector<at::Tensor> parameters_;
  std::optional<int> modifier_;
};

} // namespace trireme::zero
