#pragma once

#include <trireme/kernels/fused_kernels.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <utility>

/// Parts of a transformer as single passes over memory, forward and backward, for CPUs with AVX2 or AVX-512.
///
/// Tensors are fp32 or bf16; weights and biases may have either type. Arithmetic is fp32, results have the type of
/// the first tensor and are rounded once. All other cases (CUDA, double, fp16, no AVX2) use ATen's operations, with the
/// same meaning. Autocast converts nothing here: a bf16 result of at::linear stays bf16.
///
/// Results do not depend on the number of threads. Inputs need not be contiguous (a copy is made), batches may be
/// empty, and forward may be run again for recomputation. Backward of backward (create_graph) is refused with an Error.
namespace trireme::fused {

using kernels::Gelu;

/// Whether tensors of the type and device of x have passes of their own here, rather than ATen's operations.
bool has_passes(const at::Tensor& x);

/// gelu(x + bias) of x [..., C]; bias [C] or undefined.
///
/// Kept for backward: x. The same pass computes the bias' gradient, summed in fp32.
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, Gelu form);

/// LayerNorm over the last dim of x [..., C], weight and shift [C]. Kept for backward: x and two floats a row.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps);

/// h = x + residual + bias and y = LayerNorm(h), in one pass; backward adds h's own gradient in the same pass, too.
///
/// x, residual [..., C] (where one is fp32 and the other bf16, h and y are fp32); bias [C] or undefined. Kept: h and
/// two floats a row. Returns {h, y}.
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& residual,
                                                 const at::Tensor& bias, const at::Tensor& weight,
                                                 const at::Tensor& shift, double eps);

/// x + residual + bias [C]; nothing is kept. x, residual as above.
at::Tensor add_bias(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& bias);

/// softmax(causal mask(Q K^T / sqrt(D))) V of all heads: qkv [B, T, 3 A D] as one projection makes it (queries, keys,
/// values side by side, A heads in each), bias [3 A D] added to it or undefined -> [B, T, A D], ready for the next
/// projection.
///
/// Kept for backward: qkv and one float a query and head; the probabilities are computed again. Beside that each thread
/// holds about (6 D + 100) T floats. In fp32 whatever the type, products above the diagonal left out. Source: Dao 2023,
/// arXiv:2307.08691. A dropout of the probabilities above 0 takes ATen's operations. Errors: InputError for sizes that
/// do not fit.
at::Tensor causal_attention(const at::Tensor& qkv, const at::Tensor& bias, int64_t heads, double dropout = 0);

/// Some queries and some keys of an attention whose other keys are elsewhere: q [B, A, t, D], k and v [B, A, s, D], any
/// strides but the last, which is 1; causal: query i sees keys 0 to i, t == s.
struct AttentionBlock {
  at::Tensor q, k, v;
  bool causal = false;
};
/// Whether the two functions below take it: they have no other form, and no gradient.
bool usable(const AttentionBlock& block);
/// softmax(Q K^T / sqrt(D)) V over these keys alone, fp32 [B, A, t, D] (in memory [B, t, A, D]), and log sum exp of the
/// scores, fp32 [B, A, t].
std::pair<at::Tensor, at::Tensor> attention_block(const AttentionBlock& block);
/// What these keys add to the gradients of q, k and v, fp32: lse [B, A, t] and delta [B, A, t] (the sum over D of dout
/// * out) are those of all keys.
std::array<at::Tensor, 3> attention_block_backward(const AttentionBlock& block, const at::Tensor& dout,
                                                   const at::Tensor& lse, const at::Tensor& delta);

/// Whether backward may overwrite the logits.
enum class Logits {
  keep,
  /// Their gradient overwrites them, which saves as much memory: no other code may read them after backward, and a
  /// second backward over the same graph is refused.
  overwrite
};

/// Cross-entropy in nats of logits [N, V] against class numbers [N] int64, as at::cross_entropy_loss without weights
/// and smoothing; reduction at::Reduction::Mean or Sum. The loss is fp32 also for bf16 logits, no fp32 copy of which is
/// made.
///
/// Kept for backward: the logits and one float a row. Cost: two exponentials a logit.
/// Errors: InputError for a target outside [0, V) other than ignore_index.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t reduction,
                         int64_t ignore_index = -100, Logits logits_after = Logits::keep);

} // namespace trireme::fused
