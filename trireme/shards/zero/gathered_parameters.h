#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

namespace trireme::zero {

class ParameterCoordinator;

/// Keeps these parameters gathered on every rank during its lifetime. Made by Engine::gather_parameters().
/// Constructor and destructor are collective.
///
///   {
///     const auto whole = engine.gather_parameters({net->head->weight}, /*modifier=*/0);
///     if (world.rank() == 0) { net->head->weight.zero_(); }
///   } // broadcasts rank 0's values
///
/// Destroy it before step() or load_checkpoint(), which change the shards: with sharded parameters the engine
/// refuses them otherwise. Without a modifier rank changes are lost. Without sharding it only broadcasts the
/// modifier's values. It may outlive the engine: the parameters stay readable, and a modifier's changes stay on that
/// rank.
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
