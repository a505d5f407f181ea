#pragma once

#include <trireme/kernels/optimizer_args.h>
#include <trireme/optim/optimizer.h>

#include <span>
#include <vector>

namespace trireme::optim {

/// The optimizers' kernels for arrays on one kind of device. All pointers, sums included, are to memory of `device`: no
/// function waits for the device. Each returns once its work is ordered before any later use of the arrays there (CUDA:
/// on the current stream).
struct DeviceKernels {
  // Step the segments, in as few launches as the device allows.
  void (*adam)(const kernels::AdamArgs& args, std::span<const Segment> segments, at::Device device);
  void (*sgd)(const kernels::SgdArgs& args, std::span<const Segment> segments, at::Device device);
  void (*lion)(const kernels::LionArgs& args, std::span<const Segment> segments, at::Device device);
  void (*adagrad)(const kernels::AdagradArgs& args, std::span<const Segment> segments, at::Device device);
  void (*rmsprop)(const kernels::RmspropArgs& args, std::span<const Segment> segments, at::Device device);
  /// Updates the states of these segments. Adds the squares of parameter p's weights to sums[2p], and those of its
  /// update to sums[2p + 1].
  void (*lamb_moments)(const kernels::LambArgs& args, std::span<const Segment> segments, double* sums,
                       at::Device device);
  /// Updates the parameters; a segment's step size follows from the scale and its parameter's sums over all ranks.
  void (*lamb_apply)(const kernels::LambArgs& args, std::span<const Segment> segments, const double* sums,
                     const kernels::LambScale& scale, at::Device device);
  /// Adds the sum of squares of x[0, n) to *sum, the same bits in every run.
  void (*add_squared_norm)(const void* x, kernels::Element type, int64_t n, double* sum, at::Device device);
  /// 8-bit states to fp32 and back, rounded to nearest.
  void (*decode_states)(const kernels::StateArray& state, bool is_signed, int64_t n, float* to, at::Device device);
  void (*encode_states)(const kernels::StateArray& state, bool is_signed, int64_t n, const float* from,
                        at::Device device);
};

/// The kernels for the device of `tensor`: the registered ones, else kAtenKernels (aten_kernels.h).
const DeviceKernels& kernels_for(const at::Tensor& tensor);

/// Sets the kernels of a kind of device. The CPU's are built in, CUDA's if nvcc compiled them. Call it before the first
/// tensor on such a device.
void register_kernels(at::DeviceType device, const DeviceKernels& kernels);

/// Elements of a block of the CPU's kernels. Threads get full blocks, and a reduction has one partial result per block,
/// so results do not depend on the number of threads. 64 KiB of floats: small enough to share evenly.
inline constexpr int64_t kBlock = 16384;

/// The sum of squares of each block of `grad`, which is on the CPU. add_squared_norm() adds them in this order.
std::vector<double> squared_norms(const at::Tensor& grad);

/// CPU kernels, run on all threads of at::parallel_for with the widest instructions of this machine
/// (kernels/kernels.h).
extern const DeviceKernels kCpuKernels;

} // namespace trireme::optim
