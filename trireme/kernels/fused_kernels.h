#pragma once

#include <trireme/kernels/device.h>
#include <trireme/kernels/kernels.h>

#include <cstdint>

/// Loops over entire layers of a transformer, forward and backward: one pass over memory each, one thread, no
/// allocation.
///
/// Arrays are fp32 or bf16 (`element`: only f32 or bf16); arithmetic is fp32, stores round to nearest even. Weights,
/// shifts, biases and their gradients have the type `parameters`, which the CPU's loops know as f32 only. As in
/// kernels.h every instruction set gives the same bits, and a row's result does not depend on the other rows of a call.
/// The scalar set is for tests only: its attention costs one library call per multiplication.
namespace trireme::kernels {

/// The form of GELU: `tanh` of GPT-2, `erf` the exact one. Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
enum class Gelu { tanh, erf };

/// y = gelu(x + bias) over rows of `columns`, and its derivative. Error of both for the rounded sum, against double: at
/// most 2 ulp (of the element type) of max(|x + bias|, 1).
struct GeluArgs {
  const void* x = nullptr;
  const void* bias = nullptr; ///< [columns], or nullptr
  void* y = nullptr;          ///< forward
  const void* dy = nullptr;   ///< backward, with dx
  void* dx = nullptr;
  void* dbias = nullptr; ///< backward: the rows' sum of dx is added to it; or nullptr
  int64_t columns = 0;
  Element element = Element::f32;
  Element parameters = Element::f32;
  Gelu form = Gelu::tanh;
};

/// h = x + residual + bias (both may be absent; then h is not written), y = (h - mean) * rstd * weight + shift, over
/// rows of `columns`. Source: Ba et al. 2016, arXiv:1607.06450.
struct LayerNormArgs {
  const void* x = nullptr;
  const void* residual = nullptr; ///< nullptr: h is x
  const void* bias = nullptr;     ///< [columns]; only with a residual
  void* h = nullptr;              ///< written forward with a residual, read backward
  void* y = nullptr;
  const void* weight = nullptr; ///< [columns]
  const void* shift = nullptr;  ///< [columns]
  float* mean = nullptr;        ///< [rows]
  float* rstd = nullptr;        ///< [rows]; 1 / sqrt(variance + eps)
  float eps = 1e-5f;
  // Backward: dh is the sum of y's gradient and, if given, of h's own.
  const void* dy = nullptr;
  const void* dh_in = nullptr; ///< or nullptr
  void* dh = nullptr;
  void* dweight = nullptr; ///< these three: the rows' sum is added; nullptr leaves it out
  void* dshift = nullptr;
  void* dbias = nullptr;
  int64_t columns = 0;
  Element element = Element::f32;
  Element parameters = Element::f32;
};

/// h = x + residual (may be absent; then h is not written), y = (h * rstd, rounded to `element`) * weight, over rows of
/// `columns`. Source: Zhang & Sennrich 2019, arXiv:1910.07467.
struct RmsNormArgs {
  const void* x = nullptr;
  const void* residual = nullptr; ///< nullptr: h is x
  void* h = nullptr;              ///< written forward with a residual, read backward
  void* y = nullptr;
  const void* weight = nullptr; ///< [columns]
  float* rstd = nullptr;        ///< [rows]; 1 / sqrt(mean of squares + eps)
  float eps = 1e-5f;
  // Backward: dh is the sum of y's gradient and, if given, of h's own.
  const void* dy = nullptr;
  const void* dh_in = nullptr; ///< or nullptr
  void* dh = nullptr;
  void* dweight = nullptr; ///< the rows' sum is added; nullptr leaves it out
  int64_t columns = 0;
  Element element = Element::f32;
  Element parameters = Element::f32;
};

/// y = silu(gate) * up of single elements, and its derivatives. Source: Shazeer 2020, arXiv:2002.05202.
struct GatedSiluArgs {
  const void *gate = nullptr, *up = nullptr;
  void* y = nullptr;        ///< forward
  const void* dy = nullptr; ///< backward, with the two below
  void *dgate = nullptr, *dup = nullptr;
  Element element = Element::f32;
};

/// Cross-entropy of logits [rows, columns] against class numbers.
///
/// Forward: lse = log sum exp(logits), loss = lse - logits[target], 0 where target == ignore. Backward: dlogits =
/// (exp(logits - lse) - onehot(target)) * scale, 0 for ignored rows; may overwrite the logits. Targets must be
/// `ignore`, in [0, columns), or kElsewhere: another rank has the class's column, so the loss is lse alone and backward
/// subtracts nothing. On a device a target past the columns makes the loss NaN.
struct CrossEntropyArgs {
  static constexpr int64_t kElsewhere = -1;
  const void* logits = nullptr;
  const int64_t* target = nullptr;
  int64_t ignore = -100;
  float* lse = nullptr;
  float* loss = nullptr;
  void* dlogits = nullptr;
  float scale = 1;
  const float* device_scale = nullptr; ///< on a device: where the scale is, in place of `scale`; or nullptr
  int64_t columns = 0;
  Element element = Element::f32;
  /// Elements from one row to the next, of logits and dlogits; 0: columns. A device's backward may set those after the
  /// columns to 0.
  int64_t stride = 0;

  TRIREME_DEVICE int64_t to_next_row() const { return stride == 0 ? columns : stride; }
};

/// sum[j] += column j of the rows.
struct ColumnSumArgs {
  const void* x = nullptr;
  void* sum = nullptr;
  int64_t columns = 0;
  Element element = Element::f32;
  Element parameters = Element::f32; ///< of sum
};

/// out = x + residual + bias over rows of `columns`.
struct AddBiasArgs {
  const void* x = nullptr;
  const void* residual = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  int64_t columns = 0;
  Element element = Element::f32;
  Element parameters = Element::f32;
};

/// Strides in elements between samples, heads and rows of a tensor [batch, heads, rows, head_size]; a row is
/// contiguous.
struct HeadStrides {
  int64_t sample = 0, head = 0, row = 0;
};

/// Turns the pairs (j, j + head_size / 2) of the features of each head by the angles of its token: with c = cos, s =
/// sign * sin of row `token`, y_j = x_j c - x_(j+half) s and y_(j+half) = x_(j+half) c + x_j s. A sign of -1 turns
/// back: the gradient. Source: Su et al. 2021, arXiv:2104.09864. A row is a token of a sample, with all its heads.
struct RotaryArgs {
  const void* x = nullptr;
  HeadStrides x_at;
  void* y = nullptr;
  HeadStrides y_at;
  const float *cos = nullptr, *sin = nullptr; ///< [tokens, head_size / 2]
  float sign = 1;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_size = 0; ///< even
  Element element = Element::f32;
};

/// Tokens of the smallest block of a layout.
inline constexpr int64_t kSmallestBlock = 16;

/// Which blocks of keys each block of queries sees: the rows of one pattern for all heads, or of a pattern for each.
struct KeyBlocks {
  int64_t block = 0; ///< tokens: kSmallestBlock, or 2, 4 or 8 times as many; 0: all keys
  int64_t patterns = 1;
  const int32_t* blocks = nullptr;   ///< of row after row, ascending in each
  const int64_t* row_ends = nullptr; ///< [patterns * rows + 1]: row r has blocks [row_ends[r], row_ends[r + 1])
};

/// Attention of all heads, whose rows may have any strides, as in a projection's [batch, length, 3 * heads *
/// head_size].
///
/// out = softmax(Q K^T * scale) V with Q, K, V with bias added; `causal`: query i sees keys 0 to i, and products above
/// the diagonal are skipped (then keys == queries); with a `window` it sees keys i - window + 1 to i, and panels of
/// keys that none of its neighbours sees are skipped too; with a `layout` only the pairs of blocks in it are computed
/// (then keys == queries, and backward needs `delta`). Backward recomputes the probabilities from lse. For attention
/// to these keys alone lse is forward's. If they are some of all keys, lse and `delta` are those of all, and dq, dk, dv
/// these keys' part of the gradients. A task is one head of one sample, batch-major: of the queries forward, of keys
/// and values (with all heads of queries that use it) backward. All in fp32. Cost per task: about 2 queries keys
/// head_size multiply-adds forward (causal half of it), 2.5 times that backward. Source: Dao 2023, "FlashAttention-2",
/// arXiv:2307.08691 (recomputation from lse).
struct AttentionArgs {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  HeadStrides q_at, k_at, v_at;
  const float* bias = nullptr; ///< [3 * heads * head_size] for q, k and v, or nullptr
  void* out = nullptr;         ///< forward
  HeadStrides out_at;
  float* lse = nullptr;       ///< [batch, heads, queries], written forward, read backward
  const void* dout = nullptr; ///< backward
  HeadStrides dout_at;
  const float* delta =
      nullptr; ///< [batch, heads, queries], sum over columns of dout * out; nullptr: worked out from these keys
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  HeadStrides dq_at, dk_at, dv_at;
  float* dbias = nullptr; ///< [batch, 3 * heads * head_size]: each sample's own sum; or nullptr
  float scale = 1;
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0; ///< of k and v, divides heads; 0: heads. Without bias if they differ.
  int64_t head_size = 0;
  bool causal = true;
  int64_t window = 0;             ///< 0: none; only if causal
  KeyBlocks layout;               ///< not with a window
  Element element = Element::f32; ///< of q, k, v and dout
  Element result = Element::f32;  ///< of out, dq, dk and dv; f32 or `element`
};

/// Columns that share a scale in a row of int8 weights.
inline constexpr int64_t kInt8Group = 64;

/// y = x weight^T + bias for a few rows, as of the tokens that a text grows by: reads the weight once,
/// whatever the number of rows. Ranges are outputs.
///
/// A row of int8 weights has a float scale for each group of kInt8Group columns, then a byte for each column: weight =
/// scale * byte. Rows follow each other without padding. The products of a group are added before the scale multiplies
/// them.
struct FewRowsArgs {
  const float* x = nullptr;     ///< [rows, columns]
  const void* weight = nullptr; ///< [outputs, columns]
  const float* bias = nullptr;  ///< [outputs], or nullptr
  void* y = nullptr;            ///< [rows, outputs]
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t outputs = 0;
  Element element = Element::f32; ///< of weight: f32, bf16 or i8
  Element result = Element::f32;  ///< of y: f32 or bf16
};

/// Attention of one new token of each sample to the keys and values of its text, which are kept from before: out =
/// softmax(q K^T * scale) V, where heads / kv_heads heads of queries use a head of keys and values.
///
/// A task is `block` keys of a head of a sample, sample-major, then heads of keys, then blocks; cached_attention()
/// writes its part of the sums, and cached_attention_join(), over heads of samples, adds them up. So a long text has
/// tasks for all threads, and the result depends on the block but not on the threads. Arithmetic is fp32. Cost: one
/// read of the visible keys and values for up to 4 heads of queries. Source: Dao et al. 2023, "Flash-Decoding".
struct CachedAttentionArgs {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  HeadStrides q_at, k_at, v_at;     ///< of q and out a row is not used
  const int64_t* lengths = nullptr; ///< [samples]: keys that a sample has, at least 1
  int64_t window = 0;               ///< a sample sees its last `window` keys; 0: all
  void* out = nullptr;
  HeadStrides out_at;
  /// [samples, heads, blocks, head_size + 2]
  float* partial = nullptr;
  float scale = 1;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t block = 256; ///< at most kMostCachedKeys
  int64_t blocks = 0;  ///< for the sample that sees the most keys
  Element element = Element::f32;
};
inline constexpr int64_t kMostCachedKeys = 256;

/// The kernels of one instruction set. Ranges are rows; elements for gated_silu; outputs for few_rows; tasks for
/// attention and cached_attention.
struct FusedKernelSet {
  void (*gelu)(const GeluArgs& args, int64_t begin, int64_t end);
  void (*gelu_backward)(const GeluArgs& args, int64_t begin, int64_t end);
  void (*layer_norm)(const LayerNormArgs& args, int64_t begin, int64_t end);
  void (*layer_norm_backward)(const LayerNormArgs& args, int64_t begin, int64_t end);
  void (*cross_entropy)(const CrossEntropyArgs& args, int64_t begin, int64_t end);
  void (*cross_entropy_backward)(const CrossEntropyArgs& args, int64_t begin, int64_t end);
  void (*column_sum)(const ColumnSumArgs& args, int64_t begin, int64_t end);
  void (*add_bias)(const AddBiasArgs& args, int64_t begin, int64_t end);
  void (*rms_norm)(const RmsNormArgs& args, int64_t begin, int64_t end);
  void (*rms_norm_backward)(const RmsNormArgs& args, int64_t begin, int64_t end);
  void (*gated_silu)(const GatedSiluArgs& args, int64_t begin, int64_t end);
  void (*gated_silu_backward)(const GatedSiluArgs& args, int64_t begin, int64_t end);
  void (*rotary)(const RotaryArgs& args, int64_t begin, int64_t end);
  void (*few_rows)(const FewRowsArgs& args, int64_t begin, int64_t end);
  void (*cached_attention)(const CachedAttentionArgs& args, int64_t begin, int64_t end);
  void (*cached_attention_join)(const CachedAttentionArgs& args, int64_t begin, int64_t end);
  /// Number of floats in the workspace, the last argument of the two functions below, for these sizes. Each thread
  /// needs its own, best 64-byte aligned.
  int64_t (*attention_workspace)(const AttentionArgs& args, bool backward);
  void (*attention)(const AttentionArgs& args, int64_t begin, int64_t end, float* workspace);
  void (*attention_backward)(const AttentionArgs& args, int64_t begin, int64_t end, float* workspace);
};

/// The kernels of `simd`, which must be supported().
const FusedKernelSet& fused_kernel_set(Simd simd);

/// fused_kernel_set(active_simd()).
const FusedKernelSet& active_fused_kernels();

} // namespace trireme::kernels
