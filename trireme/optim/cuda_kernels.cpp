#include <trireme/optim/cuda_kernels.h>

#include <trireme/kernels/cuda/cuda_kernels.h>

#include <ATen/Functions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace trireme::optim {
namespace {

/// Makes the device the current one during its lifetime.
class On {
 public:
  explicit On(at::Device device) : guard_(device), stream_(c10::cuda::getCurrentCUDAStream(device.index()).stream()) {}
  void* stream() const { return stream_; }

 private:
  c10::cuda::CUDAGuard guard_;
  cudaStream_t stream_;
};

/// Freed when the caller returns; later work on the same stream may reuse it.
at::Tensor partial_sums(at::Device device) {
  return at::empty({kernels::cuda::kPartials}, at::TensorOptions(at::kDouble).device(device));
}

template <auto Kernel, class Args>
void over_segments(const Args& args, std::span<const Segment> segments, at::Device device) {
  const On on(device);
  Kernel(args, segments.data(), std::ssize(segments), on.stream());
}

void lamb_moments(const kernels::LambArgs& args, std::span<const Segment> segments, double* sums, at::Device device) {
  const On on(device);
  const at::Tensor partials = partial_sums(device);
  kernels::cuda::lamb_moments(args, segments.data(), std::ssize(segments), partials.mutable_data_ptr<double>(), sums,
                              on.stream());
}

void lamb_apply(const kernels::LambArgs& args, std::span<const Segment> segments, const double* sums,
                const kernels::LambScale& scale, at::Device device) {
  const On on(device);
  kernels::cuda::lamb_apply(args, segments.data(), std::ssize(segments), sums, scale, on.stream());
}

void add_squared_norm(const void* x, kernels::Element type, int64_t n, double* sum, at::Device device) {
  const On on(device);
  const at::Tensor partials = partial_sums(device);
  kernels::cuda::squared_norm(x, type, n, partials.mutable_data_ptr<double>(), sum, on.stream());
}

void decode_states(const kernels::StateArray& state, bool is_signed, int64_t n, float* to, at::Device device) {
  const On on(device);
  kernels::cuda::decode_state(state, is_signed, n, to, on.stream());
}

void encode_states(const kernels::StateArray& state, bool is_signed, int64_t n, const float* from, at::Device device) {
  const On on(device);
  kernels::cuda::encode_state(state, is_signed, n, from, on.stream());
}

} // namespace

const DeviceKernels kCudaKernels = {
    over_segments<&kernels::cuda::adam, kernels::AdamArgs>,
    over_segments<&kernels::cuda::sgd, kernels::SgdArgs>,
    over_segments<&kernels::cuda::lion, kernels::LionArgs>,
    over_segments<&kernels::cuda::adagrad, kernels::AdagradArgs>,
    over_segments<&kernels::cuda::rmsprop, kernels::RmspropArgs>,
    lamb_moments,
    lamb_apply,
    add_squared_norm,
    decode_states,
    encode_states,
};

} // namespace trireme::optim
