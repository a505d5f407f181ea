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

/// The same for buffers only.
void move_buffers(torch::nn::Module& module, at::Device device);

/// Makes `tensor` have the memory of `there`, which may be on another device; all holders of `tensor` see it. Drops
/// the gradient if the device changes.
void replace_data(at::Tensor& tensor, const at::Tensor& there);

} // namespace trireme::device
