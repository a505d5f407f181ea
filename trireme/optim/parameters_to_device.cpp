#include <trireme/optim/parameters_to_device.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme::optim {

at::Tensor ParametersToDevice::take(int64_t numel, at::ScalarType type) {
  device::HostBuffer& piece = pieces_[next_];
  next_ = (next_ + 1) % pieces_.size();
  piece.wait_until_idle();
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(type));
  if (piece.size() < bytes) {
    piece = device::HostBuffer(bytes, pinned_for_);
  }
  return piece.tensor(numel, type);
}

void ParametersToDevice::send(const at::Tensor& from, const at::Tensor& to) {
  const auto piece = std::ranges::find(pieces_, from.const_data_ptr(), &device::HostBuffer::data);
  const c10::Stream current = device::current_stream(device_);
  const c10::Stream own = streams_.on(device_);
  const auto sent = std::make_shared<device::Event>(device_.type());
  {
    const device::OnStream on(own, current);
    at::Tensor(to).copy_(from, /*non_blocking=*/true);
    sent->record(own);
  }
  piece->used_until(sent);
  sent->block(current);
}

} // namespace trireme::optim
