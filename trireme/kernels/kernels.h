#pragma once

#include <trireme/kernels/element.h>
#include <trireme/kernels/optimizer_args.h>
#include <trireme/kernels/simd.h>

#include <cstdint>

/// Loops over raw arrays: one pass over memory, one thread, no allocation.
///
/// Every instruction set runs the same correctly rounded operations (fused multiply-add, square root, division) in the
/// same order for each element. So results agree bit for bit between scalar, AVX2 and AVX-512, at any alignment and
/// however a range is cut. The scalar version calls the C library's fma() where the build's baseline lacks the
/// instruction: exact but slow.
///
/// This header is included by files compiled for one instruction set, so it holds plain structs
/// only: an inline function here could be linked in a version that older processors cannot run.
namespace trireme::kernels {

enum class Combine { sum, max, min };

/// Element i of every output = element i of all inputs, combined in the order of the inputs. f16 and bf16 are added in
/// float and rounded once, integers wrap around, NaN wins. An output may be one of the inputs.
///
/// Cost: one read of every input and one write of every output.
struct CombineArgs {
  const void* const* in = nullptr;
  int inputs = 0;
  void* const* out = nullptr;
  int outputs = 0;
  Element element = Element::f32;
  Combine combine = Combine::sum;
};

/// An element of a compressed mean: (grad_scale grad[i] + beta1 first[i]) / 2^k, where 2^k has the fp32 exponent
/// exponents[i]; 0 if that is 0.
struct MomentumArgs {
  const void* grad = nullptr;
  /// f32, bf16 or f16.
  Element grad_type = Element::f32;
  float grad_scale = 1;
  /// nullptr: none.
  const float* first = nullptr;
  float beta1 = 0;
  /// Up to 253. nullptr: not divided.
  const uint8_t* exponents = nullptr;
};

/// The kernels of one instruction set. Optimizers with arrays of other types than fp32 convert pieces of
/// 1024 elements to fp32 and back in the L1 cache: one loop each, whatever the types, and the same
/// arithmetic.
struct KernelSet {
  void (*adam)(const AdamArgs& args, int64_t begin, int64_t end);
  void (*sgd)(const SgdArgs& args, int64_t begin, int64_t end);
  void (*lion)(const LionArgs& args, int64_t begin, int64_t end);
  void (*adagrad)(const AdagradArgs& args, int64_t begin, int64_t end);
  void (*rmsprop)(const RmspropArgs& args, int64_t begin, int64_t end);
  /// Updates the states, not the parameters. The sums depend on where the range starts and ends, not on the instruction
  /// set.
  LambSums (*lamb_moments)(const LambArgs& args, int64_t begin, int64_t end);
  void (*lamb_apply)(const LambArgs& args, int64_t begin, int64_t end);
  /// Reads elements [begin, end) of a state to to[0, end - begin), and writes them from there, rounded as
  /// StepArgs::seed selects. Writing what was read, rounded to nearest, changes nothing.
  void (*decode_state)(const StateArray& state, bool is_signed, int64_t begin, int64_t end, float* to);
  void (*encode_state)(const StateArray& state, bool is_signed, int64_t begin, int64_t end, const float* from,
                       uint32_t seed);
  /// Sum of squares of x[0, n), f32, bf16 or f16, in double. Element i is added to partial sum i mod 32, so the result
  /// depends on where the range starts and ends, not on the instruction set. It is finite if and only if every element
  /// is, because squares of floats cannot overflow a double: a finite check needs no separate pass.
  double (*squared_norm)(const void* x, Element type, int64_t n);
  /// Combines elements [begin, end) of the arrays.
  void (*combine)(const CombineArgs& args, int64_t begin, int64_t end);
  /// Sets bit i % 8 of bits[i / 8] to x[i] >= 0 (true for both zeros, false for NaN), for [0, n); bits past n are 0.
  /// Leaves in x the difference to these signs times `scale`. Cost: reads and writes x once.
  void (*pack_signs)(float* x, int64_t n, float scale, uint8_t* bits);
  /// Adds `scale` to sum[i] if its bit is 1, else -scale.
  void (*add_signs)(const uint8_t* bits, int64_t n, float scale, float* sum);
  /// Multiplies x[i] by the power of two with the fp32 exponent exponents[i], or by its inverse; 0: by 0. For exponents
  /// up to 253.
  void (*scale_by_powers)(const uint8_t* exponents, int64_t n, bool inverse, float* x);
  /// Adds the values of elements [begin, end) to to[0, end - begin).
  void (*add_momentum)(const MomentumArgs& args, int64_t begin, int64_t end, float* to);
  /// Adds x[i] / divisor to to[i].
  void (*add_quotients)(const float* x, int64_t n, float divisor, float* to);
  /// Copies with streaming stores: for copies larger than the caches, saves reading the target first. No overlap.
  void (*stream_copy)(void* to, const void* from, int64_t bytes);
};

/// The kernels of `simd`, which must be supported().
const KernelSet& kernel_set(Simd simd);

/// kernel_set(active_simd()).
const KernelSet& active_kernels();

} // namespace trireme::kernels
