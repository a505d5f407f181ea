#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace trireme::device {

/// Moves the parameters and buffers of `module` and its children to `device`, in place: whoever holds one of these
/// tensors sees it there. Gradients are dropped. What has no memory yet or any more (sharded parameters) must be on the
/// device already. Cost: a copy of everything, that the host waits for. Errors: InputError for a parameter that is
/// sharded on another device.
void move(torch::nn::Module& module, at::Device device);

} // namespace trireme::device
