#include <trireme/engine/replica_mean.h>

#include <trireme/base/log.h>
#include <trireme/engine/parts.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <exception>

namespace trireme::engine {

ReplicaMean::ReplicaMean(const Parts& parts)
    : parameters_(parallel::pointers_to(parts.buffers.trained), parts.agreement.sync->group()) {
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
      buffer.variable_data().copy_(own); // without a new version, as ModuleBuffers does
    }
  } catch (const std::exception& error) { // of a GPU
    log::error("module buffers could not be restored after an evaluation: ", error.what());
  }
}

} // namespace trireme::engine
