#include <trireme/memory/recompute/state.h>

#include <trireme/device/choose.h>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <set>

namespace trireme::recompute {
namespace {

at::Tensor read(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

} // namespace

RandomState RandomState::of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Generator> generators = {at::globalContext().defaultGenerator(at::kCPU)};
  if (const auto type = device::accelerator()) {
    std::set<c10::DeviceIndex> devices = {c10::impl::VirtualGuardImpl(*type).getDevice().index()};
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined() && tensor.device().type() == *type) {
        devices.insert(tensor.device().index());
      }
    }
    for (const c10::DeviceIndex device : devices) {
      generators.push_back(at::globalContext().defaultGenerator(at::Device(*type, device)));
    }
  }
  RandomState state;
  for (const at::Generator& generator : generators) {
    state.states_.emplace_back(generator, read(generator));
  }
  return state;
}

RandomState RandomState::present() const {
  RandomState state;
  for (const auto& [generator, tensor] : states_) {
    state.states_.emplace_back(generator, read(generator));
  }
  return state;
}

void RandomState::restore() const {
  for (const auto& [generator, tensor] : states_) {
    at::Generator target = generator;
    const std::lock_guard<std::mutex> lock(target.mutex());
    target.set_state(tensor);
  }
}

AutocastState AutocastState::present() {
  AutocastState state;
  std::vector<at::DeviceType> devices = {at::kCPU};
  if (const auto type = device::accelerator()) {
    devices.push_back(*type);
  }
  for (const at::DeviceType device : devices) {
    state.entries_.push_back(
        {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)});
  }
  state.cache_ = at::autocast::is_autocast_cache_enabled();
  return state;
}

void AutocastState::restore() const {
  for (const Entry& entry : entries_) {
    at::autocast::set_autocast_enabled(entry.device, entry.enabled);
    at::autocast::set_autocast_dtype(entry.device, entry.type);
  }
  at::autocast::set_autocast_cache_enabled(cache_);
}

AutocastGuard::AutocastGuard(const AutocastState& state) : before_(AutocastState::present()) {
  at::autocast::increment_nesting();
  state.restore();
}

AutocastGuard::~AutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  before_.restore();
}

BufferGuard::BufferGuard(const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : buffers) {
    if (buffer.defined()) {
      before_.emplace_back(buffer, buffer.clone());
    }
  }
}

BufferGuard::~BufferGuard() {
  const at::NoGradGuard no_grad;
  for (const auto& [buffer, values] : before_) {
    buffer.variable_data().copy_(values); // keeps the version: a graph that has saved the buffer stays valid
  }
}

} // namespace trireme::recompute
