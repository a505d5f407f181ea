#pragma once

#include <trireme/kernels/device.h>
#include <trireme/kernels/element.h>

#include <cstdint>

// Arguments of the optimizer kernels: plain structs only (see kernels.h). Arrays of one call have the same length; a
// kernel processes [begin, end) of all of them.

namespace trireme::kernels {

/// Elements of one 8-bit block: they share a scale.
inline constexpr int64_t kStateBlock = 256;
/// The codes of 1.
inline constexpr int kLargestCode = 255;
inline constexpr int kLargestSignedCode = 127;

/// A seed that rounds to nearest.
inline constexpr uint32_t kToNearest = 0;

/// An optimizer state: f32, bf16, or u8 for block-wise 8 bits.
///
/// 8 bits: element i is scales[i / 256] * value(code i), where scales holds the largest magnitude of each block. The
/// dynamic tree map value() goes from [0, 255] to [0, 1], or with a sign to [-1, 1]. The smaller a value, the fewer
/// bits its fraction has. Levels differ by 8 instead of the paper's 10, which makes every value() exact in fp32, so
/// that encoding a decoded block gives the same codes. Unsigned: 128 steps from 1/8 to 1, then 64 from 1/64 to 1/8,
/// down to 8^-7; what is above 0 never becomes 0, so that a second moment stays a divisor. Signed: half as many steps,
/// down to 8^-6. A block with inf or nan reads as nan; one whose largest magnitude is below 2^-96 as 0. Ranges begin at
/// a multiple of 256, and end at one or at the array's end. Source: Dettmers et al. 2022, 8-bit Optimizers via
/// Block-wise Quantization, arXiv:2110.02861.
struct StateArray {
  void* values = nullptr;
  Element type = Element::f32;
  /// u8: one per block of 256.
  float* scales = nullptr;
};

/// The numbers that change from step to step, for parameters with the same options: a row of kStepScalars words. Each
/// optimizer uses some of them, under the names in its arguments (set_scalars()).
struct StepScalars {
  float weight_decay = 0;
  float param_scale = 1;
  /// Or lr, where the rule calls it so.
  float step_size = 0;
  float root_scale = 1;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  uint32_t seed = kToNearest;
  /// LambScale's.
  double lr_times_correction = 0;
  /// SGD's: 1 in the first step, else 0.
  uint32_t first = 0;
  uint32_t reserved = 0;
};
inline constexpr int64_t kStepScalars = 12;
static_assert(sizeof(StepScalars) == 4 * kStepScalars);

/// A run of elements that are stepped with the same numbers.
struct Segment {
  int64_t begin = 0;
  int64_t end = 0;
  /// LAMB's norms are of its parameter.
  int64_t parameter = 0;
  /// Of StepArgs::step_scalars or host_rows.
  int64_t row = 0;
  /// Of 8-bit states: the index of its first scale. A segment begins a block.
  int64_t first_block = 0;
};

/// Arguments of every optimizer.
struct StepArgs {
  /// The parameters, or their fp32 masters.
  float* param = nullptr;
  const void* grad = nullptr;
  /// f32, bf16 or f16.
  Element grad_type = Element::f32;
  /// Copy of the new parameters, rounded to bf16 or f16; nullptr: none.
  void* param_copy = nullptr;
  Element copy_type = Element::bf16;
  /// Factor of each gradient, applied as it is read.
  float grad_scale = 1;
  /// Replaces grad_scale if only the GPU knows the factor: one number in GPU memory. NaN: the call changes nothing,
  /// because gradients were not finite.
  const float* device_grad_scale = nullptr;
  /// Rounding of bf16 and 8-bit states: stochastic with random bits from this seed, which differs in each step; or
  /// kToNearest. The latter loses a step of less than half a unit in the last place (in bf16 a second moment cannot
  /// decrease at beta2 = 0.999). The random bits are a hash of the seed and the number, so they do not depend on ranges
  /// or shards.
  uint32_t seed = kToNearest;
  /// For kernels over segments: the numbers of a step, the seed included, by Segment::row. Rows in memory of the
  /// device, which a captured launch reads anew in each step; else rows on the host; else the numbers here count.
  const StepScalars* step_scalars = nullptr;
  const StepScalars* host_rows = nullptr;
};

/// Adam over [begin, end); the scalars are those of one step.
///
///   g = grad * grad_scale  [+ weight_decay * param, when the decay is not decoupled]
///   m = m + (1 - beta1) (g - m)
///   v = beta2 v + (1 - beta2) g^2
///   param = param * param_scale - step_size * m / (sqrt(v) * root_scale + eps)
///
/// Cost: 28 bytes of memory traffic per element in fp32; 28 with a bf16 gradient and a bf16 copy out; 20 with bf16
/// states besides, 16 with 8-bit states. Source: Kingma & Ba 2015, arXiv:1412.6980; Loshchilov & Hutter 2019,
/// arXiv:1711.05101.
struct AdamArgs : StepArgs {
  StateArray exp_avg;
  /// Unsigned.
  StateArray exp_avg_sq;
  /// Not decoupled: added to the gradient. Decoupled: must be 0, with param_scale = 1 - lr * weight_decay.
  float weight_decay = 0;
  float param_scale = 1;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  /// lr / (1 - beta1^step), or lr without bias correction.
  float step_size = 0;
  /// 1 / sqrt(1 - beta2^step), or 1 without bias correction.
  float root_scale = 1;
  float eps = 0;
};

/// Stochastic gradient descent over [begin, end), momentum as torch.optim.SGD defines it.
///
///   g = grad * grad_scale + weight_decay * param
///   buffer = first ? g : momentum * buffer + one_minus_dampening * g
///   param = param - lr * (nesterov ? g + momentum * buffer : buffer)
///
/// Cost in fp32: 20 bytes per element with momentum, 12 without.
struct SgdArgs : StepArgs {
  /// Without values: no momentum, param = param - lr * g.
  StateArray momentum_buffer;
  float weight_decay = 0;
  float lr = 0;
  float momentum = 0;
  float one_minus_dampening = 1;
  bool nesterov = false;
  /// First step: ignores the buffer's content.
  bool first = false;
};

/// Lion over [begin, end).
///
///   g = grad * grad_scale
///   param = param * param_scale - lr * sign(m + (1 - beta1) (g - m))       sign(0) = 0
///   m = m + (1 - beta2) (g - m)
///
/// Cost in fp32: 20 bytes per element. Source: Chen et al. 2023, arXiv:2302.06675.
struct LionArgs : StepArgs {
  StateArray exp_avg;
  /// 1 - lr * weight_decay.
  float param_scale = 1;
  float lr = 0;
  float one_minus_beta1 = 0;
  float one_minus_beta2 = 0;
};

/// Adagrad over [begin, end).
///
///   g = grad * grad_scale + weight_decay * param
///   sum = sum + g^2
///   param = param - lr * g / (sqrt(sum) + eps)
///
/// Cost in fp32: 20 bytes per element. Source: Duchi et al. 2011, JMLR 12.
struct AdagradArgs : StepArgs {
  /// Unsigned.
  StateArray sum;
  float weight_decay = 0;
  float lr = 0;
  float eps = 0;
};

/// RMSprop over [begin, end) as torch.optim.RMSprop defines it.
///
///   g = grad * grad_scale + weight_decay * param
///   v = alpha v + (1 - alpha) g^2
///   a = a + (1 - alpha) (g - a)                                  when centered
///   d = g / (sqrt(centered ? v - a^2 : v) + eps)
///   b = momentum * b + d                                         with momentum
///   param = param - lr * (with momentum ? b : d)
///
/// Cost in fp32: 20 bytes per element, 8 more for each of the other states.
/// Source: Tieleman & Hinton 2012, lecture 6.5; Graves 2013, arXiv:1308.0850 (centered).
struct RmspropArgs : StepArgs {
  /// Unsigned.
  StateArray square_avg;
  /// Without values: not centered.
  StateArray grad_avg;
  /// Without values: no momentum.
  StateArray momentum_buffer;
  float weight_decay = 0;
  float lr = 0;
  float alpha = 0;
  float one_minus_alpha = 0;
  float momentum = 0;
  float eps = 0;
};

/// LAMB over [begin, end), in two phases, because a parameter's step needs norms of all its elements.
///
///   g = grad * grad_scale
///   m, v as in Adam                                             phase 1: lamb_moments()
///   u = m / (sqrt(v) + eps) + weight_decay * param              or sqrt(v + eps), when eps is inside the root
///   param = param - step_size * u                               phase 2: lamb_apply()
///
/// Phase 2 computes u again from the states, which needs no more traffic than reading a stored u, and no memory. Cost
/// in fp32: 24 bytes per element for phase 1, 16 for phase 2. Source: You et al. 2020, arXiv:1904.00962, with the bias
/// correction in step_size, as in DeepSpeed.
struct LambArgs : StepArgs {
  StateArray exp_avg;
  /// Unsigned.
  StateArray exp_avg_sq;
  float weight_decay = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float eps = 0;
  bool eps_inside_root = false;
  /// Phase 2: LambScale's.
  float step_size = 0;
};

/// LAMB's step size of a parameter: lr_times_correction (bias correction) times the trust ratio |param| / |u| clamped
/// to the limits, or 1 if either is 0. In double, rounded once.
struct LambScale {
  double lr_times_correction = 0;
  double min_coeff = 0;
  double max_coeff = 0;
};

/// Sets the numbers of a step in arguments, and in LAMB's scale.
TRIREME_DEVICE inline void set_scalars(AdamArgs& args, const StepScalars& row) {
  args.seed = row.seed;
  args.weight_decay = row.weight_decay;
  args.param_scale = row.param_scale;
  args.one_minus_beta1 = row.one_minus_beta1;
  args.beta2 = row.beta2;
  args.one_minus_beta2 = row.one_minus_beta2;
  args.step_size = row.step_size;
  args.root_scale = row.root_scale;
}
TRIREME_DEVICE inline void set_scalars(SgdArgs& args, const StepScalars& row) {
  args.seed = row.seed;
  args.weight_decay = row.weight_decay;
  args.lr = row.step_size;
  args.first = row.first != 0;
}
TRIREME_DEVICE inline void set_scalars(LionArgs& args, const StepScalars& row) {
  args.seed = row.seed;
  args.param_scale = row.param_scale;
  args.lr = row.step_size;
  args.one_minus_beta1 = row.one_minus_beta1;
  args.one_minus_beta2 = row.one_minus_beta2;
}
TRIREME_DEVICE inline void set_scalars(AdagradArgs& args, const StepScalars& row) {
  args.seed = row.seed;
  args.weight_decay = row.weight_decay;
  args.lr = row.step_size;
}
TRIREME_DEVICE inline void set_scalars(RmspropArgs& args, const StepScalars& row) {
  args.seed = row.seed;
  args.weight_decay = row.weight_decay;
  args.lr = row.step_size;
}
TRIREME_DEVICE inline void set_scalars(LambArgs& args, const StepScalars& row) {
  args.seed = row.seed;
  args.weight_decay = row.weight_decay;
  args.one_minus_beta1 = row.one_minus_beta1;
  args.beta2 = row.beta2;
  args.one_minus_beta2 = row.one_minus_beta2;
}

/// The array from element `begin` on, whose first scale is `first_block`.
TRIREME_DEVICE inline StateArray state_from(const StateArray& state, int64_t begin, int64_t first_block) {
  const int64_t bytes = state.type == Element::f32 ? 4 : state.type == Element::u8 ? 1 : 2;
  return {state.values == nullptr ? nullptr : static_cast<char*>(state.values) + begin * bytes, state.type,
          state.scales == nullptr ? nullptr : state.scales + first_block};
}
TRIREME_DEVICE inline void shift_states(AdamArgs& args, int64_t begin, int64_t first_block) {
  args.exp_avg = state_from(args.exp_avg, begin, first_block);
  args.exp_avg_sq = state_from(args.exp_avg_sq, begin, first_block);
}
TRIREME_DEVICE inline void shift_states(SgdArgs& args, int64_t begin, int64_t first_block) {
  args.momentum_buffer = state_from(args.momentum_buffer, begin, first_block);
}
TRIREME_DEVICE inline void shift_states(LionArgs& args, int64_t begin, int64_t first_block) {
  args.exp_avg = state_from(args.exp_avg, begin, first_block);
}
TRIREME_DEVICE inline void shift_states(AdagradArgs& args, int64_t begin, int64_t first_block) {
  args.sum = state_from(args.sum, begin, first_block);
}
TRIREME_DEVICE inline void shift_states(RmspropArgs& args, int64_t begin, int64_t first_block) {
  args.square_avg = state_from(args.square_avg, begin, first_block);
  args.grad_avg = state_from(args.grad_avg, begin, first_block);
  args.momentum_buffer = state_from(args.momentum_buffer, begin, first_block);
}
TRIREME_DEVICE inline void shift_states(LambArgs& args, int64_t begin, int64_t first_block) {
  args.exp_avg = state_from(args.exp_avg, begin, first_block);
  args.exp_avg_sq = state_from(args.exp_avg_sq, begin, first_block);
}

/// The arguments of one segment, whose elements become [0, end - begin), with the numbers of `row`; nullptr: its own.
template <class Args>
TRIREME_DEVICE inline Args args_of(const Args& args, const Segment& segment, const StepScalars* row) {
  Args own = args;
  own.param += segment.begin;
  own.grad = static_cast<const char*>(args.grad) + segment.begin * (args.grad_type == Element::f32 ? 4 : 2);
  own.param_copy = args.param_copy == nullptr
                       ? nullptr
                       : static_cast<char*>(args.param_copy) + segment.begin * (args.copy_type == Element::f32 ? 4 : 2);
  shift_states(own, segment.begin, segment.first_block);
  if (row != nullptr) {
    set_scalars(own, *row);
  }
  return own;
}

/// Where a segment's row is, for code that can read both; nullptr: the arguments have the numbers.
inline const StepScalars* row_of(const StepArgs& args, const Segment& segment) {
  return args.step_scalars != nullptr ? args.step_scalars + segment.row
         : args.host_rows != nullptr  ? args.host_rows + segment.row
                                      : nullptr;
}

/// Sums of squares of the parameters and of LAMB's u.
struct LambSums {
  double param = 0;
  double update = 0;
};

} // namespace trireme::kernels
