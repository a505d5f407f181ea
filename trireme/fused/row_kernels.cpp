#include <trireme/fused/row_kernels.h>

#ifdef TRIREME_CUDA_KERNELS
#include <trireme/fused/cuda_row_kernels.h>
#endif

#include <map>

namespace trireme::fused {
namespace {

std::map<at::DeviceType, const RowKernels*>& table() {
  static std::map<at::DeviceType, const RowKernels*> kernels = {
      {at::kCPU, &kCpuRowKernels},
#ifdef TRIREME_CUDA_KERNELS
      {at::kCUDA, &kCudaRowKernels},
#endif
  };
  return kernels;
}

} // namespace

const RowKernels* row_kernels(const at::Tensor& tensor) {
  const auto found = table().find(tensor.device().type());
  return found == table().end() ? nullptr : found->second;
}

void register_row_kernels(at::DeviceType device, const RowKernels& kernels) {
  table()[device] = &kernels;
}

} // namespace trireme::fused
