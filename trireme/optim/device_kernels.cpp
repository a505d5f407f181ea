#include <trireme/optim/device_kernels.h>

#include <trireme/optim/aten_kernels.h>
#ifdef TRIREME_CUDA_KERNELS
#include <trireme/optim/cuda_kernels.h>
#endif

#include <map>

namespace trireme::optim {
namespace {

std::map<at::DeviceType, const DeviceKernels*>& table() {
  static std::map<at::DeviceType, const DeviceKernels*> kernels = {
      {at::kCPU, &kCpuKernels},
#ifdef TRIREME_CUDA_KERNELS
      {at::kCUDA, &kCudaKernels},
#endif
  };
  return kernels;
}

} // namespace

const DeviceKernels& kernels_for(const at::Tensor& tensor) {
  const auto found = table().find(tensor.device().type());
  return found == table().end() ? kAtenKernels : *found->second;
}

void register_kernels(at::DeviceType device, const DeviceKernels& kernels) {
  table()[device] = &kernels;
}

} // namespace trireme::optim
