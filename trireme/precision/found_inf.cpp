#include <trireme/precision/found_inf.h>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>

#include <cmath>

namespace trireme::precision {

// Checks the minimum and the maximum only: a NaN replaces both.
bool all_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0 || !tensor.is_floating_point()) {
    return true;
  }
  const at::Tensor values = tensor.is_sparse() ? tensor._values().detach() : tensor.detach();
  if (values.numel() == 0) {
    return true;
  }
  const auto [least, most] = at::aminmax(values);
  return std::isfinite(least.item<double>()) && std::isfinite(most.item<double>());
}

void FoundInf::look(const at::Tensor& gradient) {
  here_ = here_ || !all_finite(gradient);
}

void FoundInf::note(double made_of_gradients) {
  here_ = here_ || !std::isfinite(made_of_gradients);
}

bool FoundInf::in_sum(double sum) {
  return !(sum == 0);
}

bool FoundInf::agree(const comm::Group& group, std::string_view what) const {
  at::Tensor flag = at::full({1}, addend(), at::kDouble);
  group.all_reduce(flag, comm::ReduceOp::max, what).wait();
  return in_sum(flag.item<double>());
}

} // namespace trireme::precision
