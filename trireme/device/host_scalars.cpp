#include <trireme/device/host_scalars.h>

#include <trireme/device/stream.h>

#include <ATen/ops/stack.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace trireme::device {

std::vector<double> read_scalars(const std::vector<at::Tensor>& scalars) {
  const at::NoGradGuard no_grad;
  std::vector<double> values(scalars.size());
  std::vector<at::Tensor> there;
  for (size_t i = 0; i < scalars.size(); ++i) {
    if (scalars[i].defined() && scalars[i].is_cpu()) {
      values[i] = scalars[i].item<double>();
    } else if (scalars[i].defined()) {
      there.push_back(scalars[i].reshape({}));
    }
  }
  if (there.empty()) {
    return values;
  }
  const at::Device device = there.front().device();
  const at::Tensor here = pinned_host(std::ssize(there), at::kDouble, device.type());
  here.copy_(at::stack(there), /*non_blocking=*/true);
  Event copied(device.type());
  copied.record(current_stream(device));
  copied.synchronize();
  const double* next = here.const_data_ptr<double>();
  for (size_t i = 0; i < scalars.size(); ++i) {
    if (scalars[i].defined() && !scalars[i].is_cpu()) {
      values[i] = *next++;
    }
  }
  return values;
}

void add_scalar(at::Tensor& sum, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const at::Tensor exact = value.detach().reshape({}).to(at::kDouble);
  sum = sum.defined() ? sum.add(exact) : exact;
}

} // namespace trireme::device
