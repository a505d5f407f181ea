#include <trireme/device/upload.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace trireme::device {

Uploader::Uploader(at::Device device) : device_(device) {}

void Uploader::forget_copied() {
  while (!sources_.empty() && sources_.front().first.done()) {
    sources_.pop_front();
  }
}

at::Tensor Uploader::upload(const at::Tensor& tensor) {
  if (device_.is_cpu() || !tensor.defined() || !tensor.is_cpu()) {
    return tensor;
  }
  forget_copied();
  const at::NoGradGuard no_grad;
  const at::Tensor source = tensor.contiguous().pin_memory(); // both return the tensor itself if it already is
  const c10::Stream current = current_stream(device_);
  const c10::Stream own = streams_->on(device_);
  at::Tensor there;
  Event copied(device_.type());
  {
    const OnStream on(own);
    there = at::empty_like(source, source.options().device(device_).pinned_memory(false));
    there.copy_(source, /*non_blocking=*/true);
    copied.record(own);
  }
  copied.block(current);
  record_stream(there, current);
  sources_.emplace_back(std::move(copied), source);
  return there;
}

std::vector<at::Tensor> Uploader::upload(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) {
    tensor = upload(tensor);
  }
  return tensors;
}

} // namespace trireme::device
