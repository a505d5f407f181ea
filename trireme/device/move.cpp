#include <trireme/device/move.h>

#include <trireme/base/error.h>
#include <trireme/device/absent_memory.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

namespace trireme::device {
namespace {

void move(at::Tensor tensor, const std::string& name, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) {
    return;
  }
  if (!has_memory(tensor)) {
    throw InputError("device",
                     concat("\"", name, "\" is sharded on ", tensor.device(), ", and the engine trains on ", device),
                     "Make zero::Init with that device.");
  }
  replace_data(tensor, tensor.detach().to(device));
}

} // namespace

void replace_data(at::Tensor& tensor, const at::Tensor& there) {
  if (tensor.device() != there.device()) {
    tensor.mutable_grad() = at::Tensor();
  }
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (impl->has_compatible_shallow_copy_type(there.key_set())) {
    tensor.set_data(there);
  } else { // kinds of devices registered from outside are not in libtorch's list of compatible types
    impl->shallow_copy_from(there.getIntrusivePtr());
  }
}

void move(torch::nn::Module& module, at::Device device) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    move(item.value(), item.key(), device);
  }
  move_buffers(module, device);
}

void move_buffers(torch::nn::Module& module, at::Device device) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_buffers()) {
    move(item.value(), item.key(), device);
  }
}

} // namespace trireme::device
