#pragma once

#include <trireme/extensions/horovod/horovod.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::horovod {

struct DistributedOptimizerOptions {
  Compression compression = Compression::none;
  /// Gradients add up on each rank over this many backward passes, and then travel.
  int64_t backward_passes_per_step = 1;
  /// Op::adasum adds up what each rank's own step changed, not gradients.
  Op op = Op::average;
  /// With Op::average: gradients are divided by it before they are added up, and the sum by size / factor.
  double gradient_predivide_factor = 1;
  ProcessSet process_set = {};
  /// Sparse gradients (an embedding with sparse(true)) become dense before they travel. Otherwise their rows travel,
  /// and the optimizer has to step such: torch's SGD and Adagrad without weight decay do.
  bool sparse_as_dense = false;
};

/// Steps a torch optimizer on the gradients of all ranks, which travel while backward still computes.
///
///   torch::optim::AdamW adam(model->parameters(), 1e-3);
///   hvd::DistributedOptimizer optimizer(adam, model->named_parameters());
///   ... optimizer.zero_grad(); loss.backward(); optimizer.step();
///
/// The parameters of the optimizer's groups travel, one whose gradient another rank has and this one has not with zeros
/// (without rows, if its gradients have been sparse before; all ranks have the first sparse one in the same step).
/// Frozen ones do not, until they are unfrozen on all ranks. Learning-rate schedulers act on the torch optimizer. Lives
/// no longer than the optimizer; the parameters may live longer. Parameters' hooks after accumulation are its own while
/// it lives.
class DistributedOptimizer {
 public:
  /// Errors: InputError for names that repeat, for a parameter of the optimizer without a name or with another one's
  /// hook, and for options that do not go together.
  DistributedOptimizer(torch::optim::Optimizer& optimizer,
                       std::vector<std::pair<std::string, at::Tensor>> named_parameters,
                       const DistributedOptimizerOptions& options = {});
  template <typename NamedTensors> // of Module::named_parameters()
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedTensors& named_parameters,
                       const DistributedOptimizerOptions& options = {})
      : DistributedOptimizer(optimizer, listed(named_parameters), options) {}
  ~DistributedOptimizer();
  DistributedOptimizer(DistributedOptimizer&&) noexcept;
  DistributedOptimizer& operator=(DistributedOptimizer&&) noexcept;

  /// Waits for the gradients of all ranks, steps, and begins to count backward passes anew. After synchronize() it only
  /// steps.
  void step();
  /// Waits for the gradients of all ranks: to clip them before step(), or to leave the step out (zero_grad() begins the
  /// next). Not with Op::adasum.
  void synchronize();
  /// Errors: InputError while gradients travel, between backward() and step().
  void zero_grad();

 private:
  template <typename NamedTensors>
  static std::vector<std::pair<std::string, at::Tensor>> listed(const NamedTensors& parameters) {
    std::vector<std::pair<std::string, at::Tensor>> list;
    for (const auto& item : parameters) {
      list.emplace_back(item.key(), item.value());
    }
    return list;
  }

  class Impl;
  std::shared_ptr<Impl> impl_;
};

} // namespace trireme::horovod
