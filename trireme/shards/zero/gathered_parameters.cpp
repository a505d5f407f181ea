#include <trireme/shards/zero/gathered_parameters.h>

#include <trireme/base/log.h>
#include <trireme/shards/zero/parameter_coordinator.h>

#include <exception>
#include <utility>

namespace trireme::zero {

GatheredParameters::GatheredParameters(std::shared_ptr<ParameterCoordinator> coordinator,
                                       std::vector<at::Tensor> parameters, std::optional<int> modifier)
    : coordinator_(std::move(coordinator)), parameters_(std::move(parameters)), modifier_(modifier) {
  coordinator_->pin(parameters_, modifier_.has_value());
}

// Does not throw: the next collective reports a lost rank.
GatheredParameters::~GatheredParameters() {
  try {
    coordinator_->unpin(parameters_, modifier_);
  } catch (const std::exception& error) {
    log::error("releasing gathered parameters failed: ", error.what());
  }
}

} // namespace trireme::zero
