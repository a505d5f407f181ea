#pragma once

#include <trireme/kernels/optimizer_args.h>
#include <trireme/optim/optimizer.h>

#include <span>

namespace trireme::optim {

/// The optimizers' kernels for whole arrays on one kind of device. Arguments hold pointers to memory of that device; every function
/// returns when its work is ordered before any later use of the arrays.
struct DeviceKernels {
  // Elements [0, n).
  void (*adam)(const kernels::AdamArgs& args, int64_t n);
  void (*sgd)(const kernels::SgdArgs& args, int64_t n);
  void (*lion)(const kernels::LionArgs& args, int64_t n);
  void (*adagrad)(const kernels::AdagradArgs& args, int64_t n);
  void (*rmsprop)(const kernels::RmspropArgs& args, int64_t n);
  /// Updates the states of these segments, and adds the squares of parameter p's weights to sums[2p], of its update to sums[2p + 1].
  void (*lamb_moments)(const kernels::LambArgs& args, std::span<const Segment> segments, std::span<double> sums);
  /// Updates the parameters, each segment with its step size.
  void (*lamb_apply)(const kernels::LambArgs& args, std::span<const Segment> segments, std::span<const float> step_sizes);
  /// Sum of squares of x[0, n), the same bits in every run.
  double (*squared_norm)(const void* x, kernels::Element type, int64_t n);
  /// 8-bit states to fp32 and back, rounded to nearest.
  void (*decode_states)(const kernels::StateArray& state, bool is_signed, int64_t n, float* to);
  void (*encode_states)(const kernels::StateArray& state, bool is_signed, int64_t n, const float* from);
};

/// The kernels for the device of `tensor`. Errors: Error naming a device without kernels.
const DeviceKernels& kernels_for(const at::Tensor& tensor);

/// Sets the kernels of a kind of device; the CPU's are built in. Call it before the first tensor on such a device.
void register_kernels(at::DeviceType device, const DeviceKernels& kernels);

/// Elements of a block of the CPU's kernels: threads get whole blocks, and a reduction has one partial result a block, so neither depends
/// on how many threads there are. 64 KiB of floats: small enough to share evenly.
inline constexpr int64_t kBlock = 16384;

/// Run on all threads of at::parallel_for, with the widest instructions of this machine (kernels/kernels.h).
extern const DeviceKernels kCpuKernels;

} // namespace trireme::optim
