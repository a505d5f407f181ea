#include <trireme/device/host_scalars.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

namespace trireme::device {

ScalarsToHost::ScalarsToHost(const std::vector<at::Tensor>& scalars) : values_(scalars.size()) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> there;
  for (size_t i = 0; i < scalars.size(); ++i) {
    if (scalars[i].defined() && scalars[i].is_cpu()) {
      values_[i] = scalars[i].item<double>();
    } else if (scalars[i].defined()) {
      from_device_.push_back(i);
      there.push_back(scalars[i].reshape({}));
    }
  }
  if (there.empty()) {
    return;
  }
  const at::Device device = there.front().device();
  here_ = pinned_host(std::ssize(there), at::kDouble, device.type());
  here_.copy_(at::stack(there), /*non_blocking=*/true);
  copied_.emplace(device.type());
  copied_->record(current_stream(device));
}

void ScalarsToHost::arrived() {
  copied_.reset();
  for (size_t i = 0; i < from_device_.size(); ++i) {
    values_[from_device_[i]] = here_.const_data_ptr<double>()[i];
  }
}

bool ScalarsToHost::is_here() {
  if (copied_ && copied_->done()) {
    arrived();
  }
  return !copied_;
}

const std::vector<double>& ScalarsToHost::wait() {
  if (copied_) {
    copied_->synchronize();
    arrived();
  }
  return values_;
}

std::vector<double> read_scalars(const std::vector<at::Tensor>& scalars) {
  return ScalarsToHost(scalars).wait();
}

at::Tensor scalar_on(at::Device device, const at::Tensor& scalar) {
  if (scalar.device() == device) {
    return scalar;
  }
  return scalar.is_cpu() ? at::full(scalar.sizes(), scalar.item(), scalar.options().device(device))
                         : scalar.to(device, /*non_blocking=*/true);
}

void add_scalar(at::Tensor& sum, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const at::Tensor exact = value.detach().reshape({}).to(at::kDouble);
  sum = sum.defined() ? sum.add(exact) : exact;
}

} // namespace trireme::device
