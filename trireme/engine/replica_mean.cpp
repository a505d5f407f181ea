#include <trireme/engine/replica_mean.h>

#include <trireme/base/log.h>
#include <trireme/engine/parts.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <exception>

namespace trireme::engine {
namespace {

std::vector<bucket::FlatParameters*> all_of(const parallel::FlatBuffers& buffers) {
  std::vector<bucket::FlatParameters*> found;
  for (const auto& buffer : buffers) {
    found.push_back(buffer.get());
  }
  return found;
}

} // namespace

ReplicaMean::ReplicaMean(const Parts& parts)
    : parameters_(all_of(parts.buffers.trained), parts.agreement.sync->group()) {
  if (parts.model.module_buffers.empty() || parts.model.module_buffers.front().empty()) {
    return;
  }
  for (const at::Tensor& buffer : parts.model.module->buffers()) {
    own_buffers_.emplace_back(buffer, buffer.detach().clone());
  }
  parts.model.module_buffers.front().broadcast();
}

ReplicaMean::~ReplicaMean() {
  const torch::NoGradGuard no_grad;
  try {
    for (const auto& [buffer, own] : own_buffers_) {
      buffer.variable_data().copy_(own); // without its version, as ModuleBuffers
    }
  } catch (const std::exception& error) { // of a device
    log::error("module buffers could not be restored after an evaluation: ", error.what());
  }
}

} // namespace trireme::engine
