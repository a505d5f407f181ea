#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace trireme::device {

/// Moves the parameters and buffers of `module` and its children to `device`, in place: all holders of these tensors
/// see them there. Gradients are dropped. Tensors without memory (sharded parameters) must be on the device already.
/// Cost: a copy of everything, for which the host waits. Errors: InputError for a parameter that is sharded on another
/// device.
void move(torch::nn::Module& module, at::Device device);

} // namespace trireme::device
