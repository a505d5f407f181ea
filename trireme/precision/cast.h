#pragma once

#include <trireme/precision/options.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::precision {

/// ATen's name of the type.
at::ScalarType scalar_type(Type type);
/// The largest power of two in a floating-point type, at most fp32's: 2^15 in fp16.
double largest_power(at::ScalarType type);

struct CastOptions {
  /// Converts floating-point buffers too (a batch norm's running statistics).
  bool buffers = true;
  /// Parameters and buffers of layer, group, batch and instance norms stay in fp32. libtorch's CPU kernels take a lower
  /// input with fp32 weights; on CUDA only batch norm does.
  bool keep_norms = false;
};

/// Converts a module's floating-point parameters and buffers in place. Tensor objects stay the same, so optimizers,
/// ties and names hold, and tensors that share memory still do. Gradients are dropped; integer tensors stay. Converts
/// one tensor at a time and frees its fp32 memory, unless it is referenced from outside the module.
void cast_module(torch::nn::Module& module, Type type, const CastOptions& options = {});

/// Converts a floating-point tensor to this type, without a copy if it has the type; returns other tensors unchanged.
at::Tensor cast_floating(const at::Tensor& tensor, Type type);
/// The same for a model's inputs (fp16.auto_cast).
std::vector<at::Tensor> cast_floating(std::vector<at::Tensor> tensors, Type type);

} // namespace trireme::precision
