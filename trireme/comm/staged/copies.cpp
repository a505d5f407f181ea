#include <trireme/comm/staged/copies.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

namespace trireme::comm::staged {

at::Tensor empty_pinned(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions(type).pinned_memory(true));
}

void Copies::begin(const at::Tensor& tensor) const {
  const c10::Event ready = device::event_on(device::current_stream(tensor.device()));
  for (const c10::Stream& stream : {down, up}) {
    ready.block(stream);
    tensor.record_stream(stream);
  }
}

std::pair<at::Tensor, c10::Event> Copies::to_host(const at::Tensor& part) const {
  const at::NoGradGuard no_grad;
  const c10::StreamGuard on(down);
  const at::Tensor pinned = empty_pinned(part.sizes(), part.scalar_type());
  pinned.copy_(part, /*non_blocking=*/true);
  return {pinned, device::event_on(down)};
}

void Copies::to_device(const at::Tensor& part, const at::Tensor& pinned) const {
  const at::NoGradGuard no_grad;
  const c10::StreamGuard on(up);
  at::Tensor(part).copy_(pinned, /*non_blocking=*/true);
}

} // namespace trireme::comm::staged
