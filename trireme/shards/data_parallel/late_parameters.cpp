#include <trireme/shards/data_parallel/late_parameters.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/shards/data_parallel/reducer.h>
#include <trireme/shards/data_parallel/replicas.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <utility>

namespace trireme::parallel {
namespace {

bool trained(const at::Tensor& tensor) {
  return tensor.requires_grad() && tensor.grad().defined();
}

} // namespace

LateParameters::LateParameters(const bucket::NamedTensors& frozen, const bucket::NamedTensors& in_buckets,
                               std::weak_ptr<torch::nn::Module> model)
    : model_(std::move(model)) {
  for (const auto& [name, tensor] : in_buckets) {
    known_.insert(tensor.unsafeGetTensorImpl());
  }
  for (const auto& [name, tensor] : frozen) {
    if (known_.insert(tensor.unsafeGetTensorImpl()).second && (tensor.is_floating_point() || tensor.is_complex())) {
      frozen_.push_back({name, tensor});
    }
  }
}

std::vector<at::Tensor> LateParameters::tensors() const {
  std::vector<at::Tensor> tensors;
  for (const Parameter& parameter : frozen_) {
    tensors.push_back(parameter.tensor);
  }
  return tensors;
}

// Skips parameters with a hook: another DataParallel or an engine exchanges them.
void LateParameters::refuse_new() const {
  const auto model = model_.lock();
  if (model == nullptr) {
    return;
  }
  for (const auto& item : model->named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (trained(tensor) && known_.count(tensor.unsafeGetTensorImpl()) == 0 &&
        torch::autograd::impl::post_acc_grad_hooks(tensor) == nullptr) {
      throw InputError(
          "DataParallel",
          concat("parameter ", item.key(),
                 " has a gradient that is not exchanged: it was not in the model when DataParallel was made"),
          "Make DataParallel after all layers are in the model, and again after a layer is added or replaced.");
    }
  }
}

bool LateParameters::has_gradient(size_t i, const Reducer& reducer) const {
  const auto& [name, tensor, reduced] = frozen_[i];
  // With another reducer's hook, that reducer exchanges it.
  const bool found =
      trained(tensor) && (reducer.watches(tensor) || torch::autograd::impl::post_acc_grad_hooks(tensor) == nullptr);
  if (found && tensor.grad().is_sparse()) {
    refuse_sparse_gradient(name);
  }
  return found;
}

void LateParameters::reduce(const std::function<bool(size_t)>& wanted, const comm::Group& group, bool active,
                            double before, double after) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<Parameter*, at::Tensor>> sums;
  std::vector<comm::Work> works;
  std::vector<std::string> unfrozen;
  for (size_t i = 0; i < frozen_.size(); ++i) {
    if (!wanted(i)) {
      continue;
    }
    Parameter& parameter = frozen_[i];
    const bool adds = active && trained(parameter.tensor);
    at::Tensor sum = at::zeros(parameter.tensor.sizes(), parameter.tensor.options().requires_grad(false));
    if (adds) {
      sum.add_(parameter.tensor.grad(), before);
    }
    works.push_back(group.all_reduce(sum, comm::ReduceOp::sum, "gradient of " + parameter.name));
    sums.emplace_back(&parameter, std::move(sum));
    if (!std::exchange(parameter.reduced, true)) {
      unfrozen.push_back(parameter.name);
    }
  }
  if (!unfrozen.empty()) {
    log::info("DataParallel: ", unfrozen.front(),
              unfrozen.size() > 1 ? concat(" and ", unfrozen.size() - 1, " more") : "",
              " had no gradients at construction and have them now; these are exchanged after backward. Make "
              "DataParallel again to exchange them during backward");
  }
  for (size_t i = 0; i < works.size(); ++i) {
    works[i].wait();
    auto& [parameter, sum] = sums[i];
    at::Tensor& grad = parameter->tensor.mutable_grad();
    sum.mul_(after);
    if (grad.defined()) {
      grad.copy_(sum);
    } else {
      grad = sum;
    }
  }
}

void LateParameters::broadcast(const comm::Group& group, int root) const {
  bucket::NamedTensors tensors;
  for (const Parameter& parameter : frozen_) {
    if (parameter.reduced) {
      tensors.emplace_back(parameter.name, parameter.tensor);
    }
  }
  broadcast_tensors(tensors, group, root);
}

void LateParameters::clear_grads() {
  for (const Parameter& parameter : frozen_) {
    if (parameter.reduced || parameter.tensor.requires_grad()) {
      parameter.tensor.mutable_grad().reset();
    }
  }
}

} // namespace trireme::parallel
