#pragma once

#include <trireme/kernels/fused_kernels.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

/// Operations of a transformer as single passes over memory, forward and backward, for CPUs with AVX2 or AVX-512.
///
/// Tensors are fp32 or bf16; weights and biases may have either type. Arithmetic is fp32. Results have the type of the
/// first tensor and are rounded once. All other cases (CUDA, double, fp16, no AVX2) use ATen's operations, with the
/// same meaning. Autocast does not convert: a bf16 result of at::linear stays bf16.
///
/// Results do not depend on the number of threads, except for products of a BLAS library (linear()). Inputs need
/// not be contiguous (a copy is made), batches may be empty, and forward may be run again for recomputation. Double
/// backward (create_graph) throws an Error, but not of rotate() and linear().
namespace trireme::attention {
class BlockLayout;
}

namespace trireme::fused {

using kernels::Gelu;

/// True if tensors of the type and device of x use the fused passes, false if they use ATen's operations.
bool has_passes(const at::Tensor& x);

/// gelu(x + bias) of x [..., C]; bias [C] or undefined.
///
/// Kept for backward: x. The same pass computes the bias' gradient, summed in fp32.
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, Gelu form);

/// LayerNorm over the last dim of x [..., C], weight and shift [C]. Kept for backward: x and two floats per row.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps);

/// h = x + residual + bias and y = LayerNorm(h), in one pass; backward adds h's own gradient in the same pass.
///
/// x, residual [..., C]: if one is fp32 and the other bf16, h and y are fp32; bias [C] or undefined. Kept for backward:
/// h and two floats per row. Returns {h, y}.
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& residual,
                                                 const at::Tensor& bias, const at::Tensor& weight,
                                                 const at::Tensor& shift, double eps);

/// x + residual + bias [C]; nothing is kept. x, residual as above.
at::Tensor add_bias(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& bias);

/// x / sqrt(mean(x^2) + eps) * weight over the last dim of x [..., C], weight [C]; the quotient is rounded to the type
/// of x before the weight multiplies it. Kept for backward: x and one float per row.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// h = x + residual and y = rms_norm(h), in one pass; otherwise as add_layer_norm(). Returns {h, y}.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double eps);

/// Rotary positions, of queries and keys in one pass: turns the pairs (j, j + D/2) of q [B, A, T, D] and k [B, K, T, D]
/// by the angles of their token, cos and sin [T, D/2] in fp32 (Su et al. 2021, arXiv:2104.09864). Returns both, in
/// memory [B, T, heads, D]. Kept for backward: the table alone. Differentiable twice, whatever the device. Errors:
/// InputError for sizes that do not fit.
std::pair<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                         const at::Tensor& sin);

/// silu(gate) * up, of equal shapes (SwiGLU: Shazeer 2020, arXiv:2002.05202). Kept for backward: only these two, on any
/// device.
at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up);

/// softmax(causal mask(Q K^T / sqrt(D))) V of all heads. Input qkv [B, T, 3 A D] is the output of one projection:
/// queries, keys, values side by side, A heads in each. The bias [3 A D] is added to it, or undefined. Returns [B, T, A
/// D].
///
/// Kept for backward: qkv and one float per query and head; the probabilities are computed again. Scratch memory
/// per thread: about (6 D + 100) T floats. Computes in fp32 whatever the type and skips products above the
/// diagonal. A dropout of the probabilities above 0 uses ATen's operations. Errors: InputError for sizes that do
/// not fit. Source: Dao 2023, arXiv:2307.08691.
at::Tensor causal_attention(const at::Tensor& qkv, const at::Tensor& bias, int64_t heads, double dropout = 0);

/// A block of queries against a block of keys (ring attention, grouped queries): q [B, A, t, D], k and v [B, K, s, D],
/// where K divides A. Only the last stride must be 1. causal: query i sees keys 0 to i, t == s; with a window, the last
/// `window` of them. With a `layout` for t == s tokens, which says whether it is causal, queries see its blocks alone.
struct AttentionBlock {
  at::Tensor q, k, v;
  bool causal = false;
  int64_t window = 0;
  const attention::BlockLayout* layout = nullptr;
};
/// True if the two functions below support the block. They have no ATen fallback, and no gradient.
bool usable(const AttentionBlock& block);
/// softmax(Q K^T / sqrt(D)) V over these keys alone, fp32 [B, A, t, D] (in memory [B, t, A, D]), and log sum exp of the
/// scores, fp32 [B, A, t]. `result`: type of the first, fp32 or q's.
std::pair<at::Tensor, at::Tensor> attention_block(const AttentionBlock& block, at::ScalarType result = at::kFloat);
/// Gradients of q, k and v from these keys, fp32 or in q's type. lse [B, A, t] and delta [B, A, t] (the sum over D of
/// dout * out) are those of all keys.
std::array<at::Tensor, 3> attention_block_backward(const AttentionBlock& block, const at::Tensor& dout,
                                                   const at::Tensor& lse, const at::Tensor& delta,
                                                   at::ScalarType result = at::kFloat);

/// at::linear(x, weight, bias) of x [..., C], weight [V, C] and bias [V] or undefined.
///
/// Up to 8 rows in c10::InferenceMode, as of the tokens that texts grow by, are one pass over the weight. Weights may
/// be int8 (int8.h): up to 64 rows in c10::InferenceMode read them as they are, others a copy in the type of x. In fp32
/// on CPUs of other vendors than Intel, MKL computes 32 to 1,024 rows of 8,192 outputs or more, as logits of a
/// vocabulary, faster in blocks of outputs; scratch memory there: 1,024 floats a row. Kept for backward: x and weight.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

/// linear() of several layers of one x, as of queries, keys and values. `biases`: none, or one per weight, which may be
/// undefined. Few rows are multiplied by all weights in one parallel region.
std::vector<at::Tensor> linears(const at::Tensor& x, at::TensorList weights, at::TensorList biases);

/// Keys and values of texts that grow: [B, K, capacity, D], of which row b has lengths[b] with the token being read.
struct KeptKeys {
  at::Tensor k, v;
  std::span<const int64_t> lengths;
};
/// Reads one more token of each text: turns q [B, A, 1, D] and k [B, K, 1, D] by cos and sin [positions, D/2] of the
/// position lengths[b] - 1 (undefined: not), writes k and v to that place, and returns softmax(Q K^T / sqrt(D)) V over
/// the last `window` places (0: all), [B, A, 1, D]. K divides A. No gradient.
///
/// Cost: one read of the kept keys and values for up to 4 heads of queries. A text of more than 256 tokens is divided
/// among the threads. Arithmetic is fp32. Errors: InputError for sizes that do not fit.
at::Tensor attend_to_kept(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const KeptKeys& kept,
                          const at::Tensor& cos, const at::Tensor& sin, int64_t window);
/// True if attend_to_kept() supports tensors of the type and device of these; it has no ATen fallback.
bool has_kept_attention(const at::Tensor& q, const at::Tensor& kept_k);

/// Whether backward may overwrite the logits.
enum class Logits {
  keep,
  /// The gradient overwrites the logits, which saves a buffer of their size. No other code may read them after
  /// backward, and a second backward over the same graph throws.
  overwrite
};

/// Cross-entropy in nats of logits [N, V] against class numbers [N] int64, as at::cross_entropy_loss without weights
/// and smoothing; reduction at::Reduction::Mean or Sum. The loss is fp32 for bf16 and fp16 logits too, on every device,
/// without an fp32 copy of all of them (logit_rows.h).
///
/// Kept for backward: the logits and one float per row. Cost: two exponentials per logit. Errors: InputError for a
/// target outside [0, V) other than ignore_index (on the CPU).
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t reduction,
                         int64_t ignore_index = -100, Logits logits_after = Logits::keep);

} // namespace trireme::fused
