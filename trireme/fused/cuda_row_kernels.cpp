#include <trireme/fused/cuda_row_kernels.h>

#include <trireme/kernels/cuda/fused_cuda_kernels.h>

#include <ATen/Functions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace trireme::fused {
namespace {

template <auto Kernel, class Args>
void run(const Args& args, int64_t rows, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  Kernel(args, rows, c10::cuda::getCurrentCUDAStream(device.index()).stream());
}

/// With memory for partial sums, which is free again when the caller returns: later work on the same stream may use it.
template <auto Kernel, int kSums, class Args>
void run_with_sums(const Args& args, int64_t rows, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const at::Tensor partials =
      at::empty({kernels::cuda::column_partials(args.columns, kSums)}, at::TensorOptions(at::kFloat).device(device));
  Kernel(args, rows, partials.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream(device.index()).stream());
}

} // namespace

const RowKernels kCudaRowKernels = {
    run<&kernels::cuda::gelu, kernels::GeluArgs>,
    run_with_sums<&kernels::cuda::gelu_backward, 1, kernels::GeluArgs>,
    run<&kernels::cuda::layer_norm, kernels::LayerNormArgs>,
    run_with_sums<&kernels::cuda::layer_norm_backward, 3, kernels::LayerNormArgs>,
    run<&kernels::cuda::rms_norm, kernels::RmsNormArgs>,
    run_with_sums<&kernels::cuda::rms_norm_backward, 1, kernels::RmsNormArgs>,
    run<&kernels::cuda::add_bias, kernels::AddBiasArgs>,
    run_with_sums<&kernels::cuda::column_sum, 1, kernels::ColumnSumArgs>,
    run<&kernels::cuda::cross_entropy, kernels::CrossEntropyArgs>,
    run<&kernels::cuda::cross_entropy_backward, kernels::CrossEntropyArgs>,
    run<&kernels::cuda::rotary, kernels::RotaryArgs>,
    run<&kernels::cuda::gated_silu, kernels::GatedSiluArgs>,
    run<&kernels::cuda::gated_silu_backward, kernels::GatedSiluArgs>,
    run<&kernels::cuda::dropout, kernels::DropoutArgs>,
};

} // namespace trireme::fused
