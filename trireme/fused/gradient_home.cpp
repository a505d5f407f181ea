#include <trireme/fused/gradient_home.h>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace trireme::fused {
namespace {

GradientHome* home_of(const at::Tensor& parameter) {
  if (!parameter.defined() || !parameter.requires_grad() || !parameter.is_leaf()) {
    return nullptr;
  }
  return dynamic_cast<GradientHome*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

// False in torch::autograd::grad(), and in a backward() of other leaves.
bool accumulates(const at::Tensor& parameter) {
  if (torch::autograd::get_current_graph_task_id() == -1) {
    return false;
  }
  const auto* only = torch::autograd::get_current_graph_task_exec_info();
  if (only == nullptr || only->empty()) {
    return true;
  }
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  const auto found = accumulator ? only->find(accumulator.get()) : only->end();
  return found != only->end() && found->second.needed_ && !found->second.captures_;
}

} // namespace

bool has_gradient_home(const at::Tensor& parameter) {
  return home_of(parameter) != nullptr;
}

GradientMemory gradient_memory(const at::Tensor& parameter) {
  GradientHome* home = home_of(parameter);
  if (home == nullptr || at::GradMode::is_enabled() || !torch::autograd::impl::hooks(parameter).empty() ||
      !accumulates(parameter)) {
    return {};
  }
  return home->open();
}

at::Tensor unwritten_gradient_memory(const at::Tensor& parameter) {
  const GradientMemory gradient = gradient_memory(parameter);
  return gradient.is_first ? gradient.memory : at::Tensor();
}

} // namespace trireme::fused
