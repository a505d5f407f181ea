#pragma once

#include <trireme/kernels/simd.h>

#include <cstdint>

/// Loops over raw fp32 arrays: one pass over memory, one thread, no allocation.
///
/// Every instruction set runs the same correctly rounded operations (fused multiply-add, square
/// root, division) in the same order for each element, so results agree bit for bit between
/// scalar, AVX2 and AVX-512, at any alignment and however a range is cut. The scalar version calls
/// the C library's fma() where the build's baseline lacks the instruction: exact but slow.
///
/// This header is included by files compiled for one instruction set, so it holds plain structs
/// only: an inline function here could be linked in a version that older processors cannot run.
namespace trireme::kernels {

/// Adam over [begin, end) of four arrays; the scalars are those of one step.
///
///   g = grad * grad_scale  [+ weight_decay * param, when the decay is not decoupled]
///   m = m + (1 - beta1) (g - m)
///   v = beta2 v + (1 - beta2) g^2
///   param = param * param_scale - step_size * m / (sqrt(v) * root_scale + eps)
///
/// Cost: 28 bytes of memory traffic an element.
/// Source: Kingma & Ba 2015, arXiv:1412.6980; Loshchilov & Hutter 2019, arXiv:1711.05101.
struct AdamArgs {
  float* param = nullptr;
  const float* grad = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  float grad_scale = 1;
  /// Not decoupled: added to the gradient. Decoupled: 0 here, and param_scale = 1 - lr * weight_decay.
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
/// Cost: 20 bytes an element with momentum, 12 without.
struct SgdArgs {
  float* param = nullptr;
  const float* grad = nullptr;
  /// nullptr: no momentum, param = param - lr * g.
  float* momentum_buffer = nullptr;
  float grad_scale = 1;
  float weight_decay = 0;
  float lr = 0;
  float momentum = 0;
  float one_minus_dampening = 1;
  bool nesterov = false;
  /// The first step: the buffer is written without being read.
  bool first = false;
};

/// Types of the elements that combine() knows.
enum class Element { f32, f64, f16, bf16, u8, i8, i16, i32, i64 };
enum class Combine { sum, max, min };

/// Element i of every output = element i of all inputs, combined in the order of the inputs. f16 and bf16 are
/// added in float and rounded once, integers wrap around, NaN wins. An output may be one of the inputs.
///
/// Cost: reads every input and writes every output once.
struct CombineArgs {
  const void* const* in = nullptr;
  int inputs = 0;
  void* const* out = nullptr;
  int outputs = 0;
  Element element = Element::f32;
  Combine combine = Combine::sum;
};

/// The kernels of one instruction set.
struct KernelSet {
  void (*adam)(const AdamArgs& args, int64_t begin, int64_t end);
  void (*sgd)(const SgdArgs& args, int64_t begin, int64_t end);
  /// Sum of squares of x[0, n) in double. Element i goes to partial sum i mod 32, so the result
  /// depends on where the range starts and ends, not on the instruction set.
  double (*squared_norm)(const float* x, int64_t n);
  /// Elements [begin, end) of the arrays.
  void (*combine)(const CombineArgs& args, int64_t begin, int64_t end);
  /// Copies past the caches: for more bytes than they hold, saves reading the target first. No overlap.
  void (*stream_copy)(void* to, const void* from, int64_t bytes);
};

/// The kernels of `simd`, which must be supported().
const KernelSet& kernel_set(Simd simd);

/// kernel_set(active_simd()).
const KernelSet& active_kernels();

} // namespace trireme::kernels
