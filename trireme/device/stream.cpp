#include <trireme/device/stream.h>

#include <trireme/device/host_waits.h>

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace trireme::device {
namespace {

c10::impl::VirtualGuardImpl interface_of(at::DeviceType type) {
  return c10::impl::VirtualGuardImpl(type);
}

} // namespace

at::Device with_index(at::Device device) {
  return device.is_cpu() || device.has_index() ? device : interface_of(device.type()).getDevice();
}

void make_current(at::Device device) {
  if (!device.is_cpu()) {
    interface_of(device.type()).setDevice(device);
  }
}

c10::Stream current_stream(at::Device device) {
  const at::Device there = with_index(device);
  return there.is_cpu() ? c10::Stream(c10::Stream::DEFAULT, there) : interface_of(there.type()).getStream(there);
}

void record_stream(const at::Tensor& tensor, const c10::Stream& stream) {
  if (tensor.defined() && !tensor.is_cpu()) {
    interface_of(tensor.device().type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  }
}

at::Tensor pinned_host(int64_t numel, at::ScalarType type, at::DeviceType device) {
  return at::empty({numel}, at::TensorOptions(type).pinned_memory(device != at::kCPU));
}

c10::Stream KeptStreams::on(at::Device device) {
  const at::Device there = with_index(device);
  if (there.is_cpu()) {
    return c10::Stream(c10::Stream::DEFAULT, there);
  }
  const std::lock_guard lock(mutex_);
  auto found = streams_.find(there);
  if (found == streams_.end()) {
    found = streams_.emplace(there, interface_of(there.type()).getStreamFromGlobalPool(there, /*isHighPriority=*/false))
                .first;
  }
  return found->second;
}

Event::Event(at::DeviceType type, bool timed) {
  if (type != at::kCPU) {
    event_.emplace(type, timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
  }
}

void Event::record(const c10::Stream& stream) {
  if (event_) {
    event_->record(stream);
  }
}

void Event::block(const c10::Stream& stream) const {
  if (event_) {
    event_->block(stream);
  }
}

void Event::synchronize() const {
  if (event_) {
    count_host_wait();
    event_->synchronize();
  }
}

bool Event::done() const {
  return !event_ || event_->query();
}

double Event::seconds_since(const Event& earlier) const {
  return event_ ? earlier.event_->elapsedTime(*event_) * 1e-3 : 0;
}

OnStream::OnStream(const c10::Stream& stream) {
  if (stream.device_type() != at::kCPU) {
    guard_.emplace(stream);
  }
}

OnStream::OnStream(const c10::Stream& stream, const c10::Stream& after) : OnStream(stream) {
  Event ready(stream.device_type());
  ready.record(after);
  ready.block(stream);
}

} // namespace trireme::device
