#pragma once

#include <trireme/extensions/horovod/horovod.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::horovod {

struct DistributedOptimizerOptions {
  Compression compression = Compression::none;
  /// Gradients are accumulated over this many backward passes, and then sent.
  int64_t backward_passes_per_step = 1;
  /// Op::adasum combines the change of each rank's own step instead of gradients.
  Op op = Op::average;
  /// With Op::average: gradients are divided by this before the sum, and the sum by size / factor.
  double gradient_predivide_factor = 1;
  ProcessSet process_set = {};
  /// Sparse gradients (an embedding with sparse(true)) are sent as dense ones. Otherwise their rows are sent, and the
  /// optimizer must support sparse gradients, as torch's SGD and Adagrad without weight decay do.
  bool sparse_as_dense = false;
};

/// Steps a torch optimizer on the gradients of all ranks, which are sent during backward.
///
///   torch::optim::AdamW adam(model->parameters(), 1e-3);
///   hvd::DistributedOptimizer optimizer(adam, model->named_parameters());
///   ... optimizer.zero_grad(); loss.backward(); optimizer.step();
///
/// Sends the gradients of all parameters in the optimizer's groups. A rank that lacks a gradient which another has
/// sends zeros, or no rows if the gradients have been sparse; the first sparse gradient must come in the same step on
/// all ranks. Frozen parameters are skipped until they are unfrozen on all ranks.
///
/// Learning-rate schedulers act on the torch optimizer, which must outlive this object; parameters may live longer. The
/// parameters' hooks after accumulation belong to this object during its lifetime.
class DistributedOptimizer {
 public:
  /// Errors: InputError for repeated names, for a parameter of the optimizer without a name or with another object's
  /// hook, and for conflicting options.
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

  /// Waits for the gradients of all ranks, steps, and restarts the count of backward passes. After synchronize() it
  /// only steps.
  void step();
  /// Waits for the gradients of all ranks, to clip them before step(), or to skip the step (then zero_grad() begins the
  /// next). Not with Op::adasum.
  void synchronize();
  /// Errors: InputError while gradients are being sent, between backward() and step().
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
