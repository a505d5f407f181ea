// The kernels that Llama needs beside GPT's.
#include "fused_arrays.h"

#include <gmock/gmock.h>

#include <tuple>
#include <vector>

namespace trireme::kernels {
namespace {

Bytes run_rms_norm(const FusedKernelSet& set, const Shape& s) {
  const int64_t n = s.rows * s.columns;
  Array x(s.element, random_values(n, 1)), residual(s.element, random_values(n, 2)), h(s.element, n), y(s.element, n),
      dy(s.element, random_values(n, 3)), dh_in(s.element, random_values(n, 4)), dh(s.element, n);
  const std::vector<float> weight = random_values(s.columns, 6);
  std::vector<float> rstd(static_cast<size_t>(s.rows)), dweight(static_cast<size_t>(s.columns));
  RmsNormArgs args;
  args.x = x.data();
  args.residual = residual.data();
  args.h = h.data();
  args.y = y.data();
  args.weight = weight.data();
  args.rstd = rstd.data();
  args.dy = dy.data();
  args.dh_in = dh_in.data();
  args.dh = dh.data();
  args.dweight = dweight.data();
  args.columns = s.columns;
  args.element = s.element;
  set.rms_norm(args, 0, s.rows);
  set.rms_norm_backward(args, 0, s.rows);
  Bytes all = h.bytes();
  append(all, y.bytes());
  append(all, dh.bytes());
  append(all, rstd);
  append(all, dweight);
  return all;
}

Bytes run_gated_silu(const FusedKernelSet& set, const Shape& s) {
  const int64_t n = s.rows * s.columns;
  Array gate(s.element, random_values(n, 1, 30)), up(s.element, random_values(n, 2)), y(s.element, n),
      dy(s.element, random_values(n, 3)), dgate(s.element, n), dup(s.element, n);
  const GatedSiluArgs args{.gate = gate.data(),
                           .up = up.data(),
                           .y = y.data(),
                           .dy = dy.data(),
                           .dgate = dgate.data(),
                           .dup = dup.data(),
                           .element = s.element};
  set.gated_silu(args, 0, n);
  set.gated_silu_backward(args, 0, n);
  Bytes all = y.bytes();
  append(all, dgate.bytes());
  append(all, dup.bytes());
  return all;
}

/// Two samples, three heads; columns is half the size of a head.
Bytes run_rotary(const FusedKernelSet& set, const Shape& s) {
  constexpr int64_t kBatch = 2, kHeads = 3;
  const int64_t size = 2 * s.columns, n = kBatch * s.rows * kHeads * size;
  Array x(s.element, random_values(n, 1)), y(s.element, n);
  const std::vector<float> cos = random_values(s.rows * s.columns, 2), sin = random_values(s.rows * s.columns, 3);
  RotaryArgs args;
  args.x = x.data();
  args.y = y.data();
  args.x_at = {s.rows * kHeads * size, size, kHeads * size};
  args.y_at = {s.rows * kHeads * size, s.rows * size, size}; // heads outside
  args.cos = cos.data();
  args.sin = sin.data();
  args.sign = -1;
  args.tokens = s.rows;
  args.heads = kHeads;
  args.head_size = size;
  args.element = s.element;
  set.rotary(args, 0, kBatch * s.rows);
  return y.bytes();
}

/// Grouped queries with a window; results in fp32.
Bytes run_grouped_attention(const FusedKernelSet& set, Element element, int64_t length, int64_t head_size,
                            int64_t window) {
  constexpr int64_t kBatch = 2, kHeads = 6, kKvHeads = 2;
  const int64_t hidden = kHeads * head_size, kv_hidden = kKvHeads * head_size;
  const int64_t n = kBatch * length * hidden, m = kBatch * length * kv_hidden, rows = kBatch * kHeads * length;
  Array q(element, random_values(n, 1, 1)), k(element, random_values(m, 4, 1)), v(element, random_values(m, 5, 1)),
      dout(element, random_values(n, 2));
  std::vector<float> out(static_cast<size_t>(n)), dq(out), dk(static_cast<size_t>(m)), dv(dk),
      lse(static_cast<size_t>(rows));
  const std::vector<float> delta = random_values(rows, 6);
  AttentionArgs args;
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.out = out.data();
  args.lse = lse.data();
  args.dout = dout.data();
  args.delta = delta.data();
  args.dq = dq.data();
  args.dk = dk.data();
  args.dv = dv.data();
  args.q_at = args.out_at = args.dout_at = args.dq_at = {length * hidden, head_size, hidden};
  args.k_at = args.v_at = args.dk_at = args.dv_at = {length * kv_hidden, head_size, kv_hidden};
  args.scale = 0.3f;
  args.queries = args.keys = length;
  args.heads = kHeads;
  args.kv_heads = kKvHeads;
  args.head_size = head_size;
  args.window = window;
  args.element = element;
  run_forward(set, args, kBatch * kHeads);
  run_backward(set, args, kBatch * kKvHeads);
  Bytes all;
  for (const std::vector<float>* result : {&out, &dq, &dk, &dv, &lse}) {
    append(all, *result);
  }
  return all;
}

class LlamaKernelsTest : public FusedKernelsTest {};

INSTANTIATE_TEST_SUITE_P(Elements, LlamaKernelsTest, testing::Values(Element::f32, Element::bf16),
                         [](const auto& info) { return info.param == Element::bf16 ? "bf16" : "f32"; });

TEST_P(LlamaKernelsTest, EveryInstructionSetGivesTheSameBits) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 15}, {2, 16}, {5, 33}, {2, 130}, {1, 200}, {14, 20}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << columns);
    const Shape shape{GetParam(), rows, columns};
    expect_same_bits([&](const FusedKernelSet& set) { return run_rms_norm(set, shape); });
    expect_same_bits([&](const FusedKernelSet& set) { return run_gated_silu(set, shape); });
    expect_same_bits([&](const FusedKernelSet& set) { return run_rotary(set, shape); });
  }
}

TEST_P(LlamaKernelsTest, EveryInstructionSetGivesTheSameGroupedAttention) {
  for (const auto& [length, size, window] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 0},
                                             {50, 5, 0},
                                             {131, 16, 1},
                                             {200, 33, 70},
                                             {1200, 2, 0},
                                             {2300, 2, 30}}) {
    SCOPED_TRACE(testing::Message() << length << " x " << size << ", window " << window);
    expect_same_bits([&, length = length, size = size, window = window](const FusedKernelSet& set) {
      return run_grouped_attention(set, GetParam(), length, size, window);
    });
  }
}

} // namespace
} // namespace trireme::kernels
