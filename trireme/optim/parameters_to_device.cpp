#include <trireme/optim/parameters_to_device.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme::optim {

ParametersToDevice::ParametersToDevice(at::Device device, bool pinned, size_t pieces)
    : device_(device), pinned_for_(pinned ? device.type() : at::kCPU) {
  for (size_t i = 0; i < pieces; ++i) {
    pieces_.push_back({at::Tensor(), device::Event(device.type())});
  }
}

at::Tensor ParametersToDevice::take(int64_t numel, at::ScalarType type) {
  Piece& piece = pieces_[next_];
  next_ = (next_ + 1) % pieces_.size();
  if (piece.memory.defined() && !piece.sent.done()) {
    piece.sent.synchronize();
  }
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(type));
  if (!piece.memory.defined() || piece.memory.numel() < bytes) {
    piece.memory = device::pinned_host(bytes, at::kByte, pinned_for_);
  }
  return piece.memory.slice(0, 0, bytes).view(type);
}

void ParametersToDevice::send(const at::Tensor& from, const at::Tensor& to) {
  const auto piece = std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& one) {
    return one.memory.defined() && one.memory.const_data_ptr() == from.const_data_ptr();
  });
  const c10::Stream current = device::current_stream(device_);
  const c10::Stream own = streams_.on(device_);
  device::Event ready(device_.type());
  ready.record(current);
  {
    const device::OnStream on(own);
    ready.block(own);
    at::Tensor(to).copy_(from, /*non_blocking=*/true);
    piece->sent.record(own);
  }
  piece->sent.block(current);
}

} // namespace trireme::optim
