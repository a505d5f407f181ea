#include <trireme/optim/device_kernels.h>

#include <trireme/base/error.h>

#include <map>

namespace trireme::optim {
namespace {

std::map<at::DeviceType, const DeviceKernels*>& table() {
  static std::map<at::DeviceType, const DeviceKernels*> kernels = {{at::kCPU, &kCpuKernels}};
  return kernels;
}

} // namespace

const DeviceKernels& kernels_for(const at::Tensor& tensor) {
  const auto found = table().find(tensor.device().type());
  if (found == table().end()) {
    throw Error("optim", concat("there are no optimizer kernels for tensors on ", tensor.device(), '.'), "Train on the CPU.");
  }
  return *found->second;
}

void register_kernels(at::DeviceType device, const DeviceKernels& kernels) {
  table()[device] = &kernels;
}

} // namespace trireme::optim
