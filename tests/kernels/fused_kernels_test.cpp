#include "fused_arrays.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

namespace trireme::kernels {
namespace {

Bytes run_gelu(const FusedKernelSet& set, const Shape& s, Gelu form) {
  Array x(s.element, random_values(s.rows * s.columns, 1, 4)), dy(s.element, random_values(s.rows * s.columns, 2)),
      y(s.element, s.rows * s.columns), dx(s.element, s.rows * s.columns);
  const std::vector<float> bias = random_values(s.columns, 3);
  std::vector<float> dbias(static_cast<size_t>(s.columns));
  GeluArgs args;
  args.x = x.data();
  args.bias = bias.data();
  args.y = y.data();
  args.dy = dy.data();
  args.dx = dx.data();
  args.dbias = dbias.data();
  args.columns = s.columns;
  args.element = s.element;
  args.form = form;
  set.gelu(args, 0, s.rows);
  set.gelu_backward(args, 0, s.rows);
  Bytes all = y.bytes();
  append(all, dx.bytes());
  append(all, dbias);
  return all;
}

Bytes run_layer_norm(const FusedKernelSet& set, const Shape& s) {
  const int64_t n = s.rows * s.columns;
  Array x(s.element, random_values(n, 1)), residual(s.element, random_values(n, 2)), h(s.element, n), y(s.element, n),
      dy(s.element, random_values(n, 3)), dh_in(s.element, random_values(n, 4)), dh(s.element, n), sum(s.element, n);
  const std::vector<float> bias = random_values(s.columns, 5), weight = random_values(s.columns, 6),
                           shift = random_values(s.columns, 7);
  std::vector<float> mean(static_cast<size_t>(s.rows)), rstd(mean), dweight(static_cast<size_t>(s.columns)),
      dshift(dweight), dbias(dweight), sums(dweight);
  LayerNormArgs args;
  args.x = x.data();
  args.residual = residual.data();
  args.bias = bias.data();
  args.h = h.data();
  args.y = y.data();
  args.weight = weight.data();
  args.shift = shift.data();
  args.mean = mean.data();
  args.rstd = rstd.data();
  args.dy = dy.data();
  args.dh_in = dh_in.data();
  args.dh = dh.data();
  args.dweight = dweight.data();
  args.dshift = dshift.data();
  args.dbias = dbias.data();
  args.columns = s.columns;
  args.element = s.element;
  set.layer_norm(args, 0, s.rows);
  set.layer_norm_backward(args, 0, s.rows);
  set.add_bias({x.data(), residual.data(), bias.data(), sum.data(), s.columns, s.element}, 0, s.rows);
  set.column_sum({sum.data(), sums.data(), s.columns, s.element}, 0, s.rows);
  Bytes all = h.bytes();
  for (const Array* array : {&y, &dh, &sum}) {
    append(all, array->bytes());
  }
  for (const auto* floats : {&mean, &rstd, &dweight, &dshift, &dbias, &sums}) {
    append(all, *floats);
  }
  return all;
}

Bytes run_cross_entropy(const FusedKernelSet& set, const Shape& s) {
  Array logits(s.element, random_values(s.rows * s.columns, 1, 5));
  std::vector<int64_t> target;
  for (int64_t row = 0; row < s.rows; ++row) {
    target.push_back(row % 3 == 1 ? -100 : row * 7 % s.columns);
  }
  std::vector<float> lse(static_cast<size_t>(s.rows)), loss(lse);
  CrossEntropyArgs args;
  args.logits = logits.data();
  args.target = target.data();
  args.lse = lse.data();
  args.loss = loss.data();
  args.dlogits = logits.data();
  args.scale = 0.37f;
  args.columns = s.columns;
  args.element = s.element;
  set.cross_entropy(args, 0, s.rows);
  set.cross_entropy_backward(args, 0, s.rows);
  Bytes all = logits.bytes();
  append(all, lse);
  append(all, loss);
  return all;
}

Bytes run_attention(const FusedKernelSet& set, Element element, int64_t length, int64_t head_size) {
  constexpr int64_t kBatch = 2, kHeads = 2;
  const int64_t hidden = kHeads * head_size;
  const int64_t n = kBatch * length * hidden;
  Array q(element, random_values(n, 1, 1)), k(element, random_values(n, 4, 1)), v(element, random_values(n, 5, 1)),
      out(element, n), dout(element, random_values(n, 2)), dq(element, n), dk(element, n), dv(element, n);
  const std::vector<float> bias = random_values(3 * hidden, 3, 1);
  std::vector<float> lse(static_cast<size_t>(kBatch * kHeads * length)),
      dbias(static_cast<size_t>(kBatch * 3 * hidden));
  AttentionArgs args;
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.bias = bias.data();
  args.out = out.data();
  args.lse = lse.data();
  args.dout = dout.data();
  args.dq = dq.data();
  args.dk = dk.data();
  args.dv = dv.data();
  args.dbias = dbias.data();
  args.q_at = args.k_at = args.v_at = args.out_at = args.dout_at = args.dq_at = args.dk_at =
      args.dv_at = {length * hidden, head_size, hidden};
  args.scale = 0.3f;
  args.queries = args.keys = length;
  args.heads = kHeads;
  args.head_size = head_size;
  args.element = args.result = element;
  run_forward(set, args, kBatch * kHeads);
  run_backward(set, args, kBatch * kHeads);
  Bytes all = out.bytes();
  for (const Array* grad : {&dq, &dk, &dv}) {
    append(all, grad->bytes());
  }
  append(all, lse);
  append(all, dbias);
  return all;
}

/// Queries that see all of other keys, the rest of whose softmax is elsewhere; results in fp32.
Bytes run_attention_block(const FusedKernelSet& set, Element element, int64_t queries, int64_t keys,
                          int64_t head_size) {
  constexpr int64_t kBatch = 2, kHeads = 3;
  const int64_t hidden = kHeads * head_size;
  const int64_t n = kBatch * queries * hidden, m = kBatch * keys * hidden, rows = kBatch * kHeads * queries;
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
  args.q_at = args.out_at = args.dout_at = args.dq_at = {queries * hidden, head_size, hidden};
  args.k_at = args.v_at = args.dk_at = args.dv_at = {keys * hidden, keys * head_size, head_size}; // heads outside
  args.scale = 0.3f;
  args.queries = queries;
  args.keys = keys;
  args.heads = kHeads;
  args.head_size = head_size;
  args.causal = false;
  args.element = element;
  run_forward(set, args, kBatch * kHeads);
  for (float& x : lse) {
    x += 0.5f; // other keys too
  }
  run_backward(set, args, kBatch * kHeads);
  Bytes all;
  for (const std::vector<float>* result : {&out, &dq, &dk, &dv, &lse}) {
    append(all, *result);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Elements, FusedKernelsTest, testing::Values(Element::f32, Element::bf16),
                         [](const auto& info) { return info.param == Element::bf16 ? "bf16" : "f32"; });

TEST_P(FusedKernelsTest, EveryInstructionSetGivesTheSameBits) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 15}, {2, 16}, {5, 33}, {2, 130}, {1, 200}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << columns);
    const Shape shape{GetParam(), rows, columns};
    expect_same_bits([&](const FusedKernelSet& set) { return run_gelu(set, shape, Gelu::tanh); });
    expect_same_bits([&](const FusedKernelSet& set) { return run_gelu(set, shape, Gelu::erf); });
    expect_same_bits([&](const FusedKernelSet& set) { return run_layer_norm(set, shape); });
    expect_same_bits([&](const FusedKernelSet& set) { return run_cross_entropy(set, shape); });
  }
}

TEST_P(FusedKernelsTest, EveryInstructionSetGivesTheSameAttention) {
  for (const auto& [length, size] : {std::pair<int64_t, int64_t>{1, 1},
                                     {7, 5},
                                     {48, 16},
                                     {49, 33},
                                     {131, 64},
                                     {1061, 2}}) { // the last is in two pieces of keys
    SCOPED_TRACE(testing::Message() << length << " x " << size);
    expect_same_bits([&, length = length, size = size](const FusedKernelSet& set) {
      return run_attention(set, GetParam(), length, size);
    });
  }
  for (const auto& [queries, keys, size] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {50, 7, 5}, {7, 50, 16}, {49, 131, 33}, {61, 2100, 2}}) {
    SCOPED_TRACE(testing::Message() << queries << " x " << keys << " x " << size);
    expect_same_bits([&, queries = queries, keys = keys, size = size](const FusedKernelSet& set) {
      return run_attention_block(set, GetParam(), queries, keys, size);
    });
  }
}

// The bound of GeluArgs, over the whole range and densely about 0.
TEST_P(FusedKernelsTest, GeluIsWithinItsBound) {
  std::vector<float> values;
  for (int i = -60000; i <= 60000; ++i) {
    values.push_back(static_cast<float>(i) * 2e-4f);
  }
  values.insert(values.end(), {-1e30f, -90, -40, 40, 90, 1e30f, 0, -0.0f});
  const auto n = static_cast<int64_t>(values.size());
  const std::vector<float> ones(values.size(), 1);
  const double ulp = GetParam() == Element::bf16 ? 0x1p-8 : 0x1p-23;
  for (Gelu form : {Gelu::tanh, Gelu::erf}) {
    Array x(GetParam(), values), dy(GetParam(), ones), y(GetParam(), n), dx(GetParam(), n);
    GeluArgs args;
    args.x = x.data();
    args.y = y.data();
    args.dy = dy.data();
    args.dx = dx.data();
    args.columns = n;
    args.element = GetParam();
    args.form = form;
    active_fused_kernels().gelu(args, 0, 1);
    active_fused_kernels().gelu_backward(args, 0, 1);
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double v = x.at(i);
      double value = 0.5 * v * std::erfc(-v / std::sqrt(2.0));
      double slope = 0.5 * std::erfc(-v / std::sqrt(2.0)) + v * std::exp(-v * v / 2) / std::sqrt(2 * M_PI);
      if (form == Gelu::tanh) {
        const double u = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
        const double t = std::tanh(u);
        value = std::abs(v) > 1e10 ? std::max(v, 0.0) : 0.5 * v * (1 + t);
        slope = std::abs(v) > 1e10
                    ? (v > 0)
                    : 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * v * v);
      }
      if (std::abs(v) > 1e10 && form == Gelu::erf) {
        slope = v > 0;
      }
      const double scale = std::max(std::abs(v), 1.0) * ulp;
      EXPECT_TRUE(std::isfinite(y.at(i)) && std::isfinite(dx.at(i))) << v;
      worst = std::max({worst, std::abs(y.at(i) - value) / scale, std::abs(dx.at(i) - slope) / scale});
    }
    EXPECT_LE(worst, 2.0);
    EXPECT_GT(worst, 0.1) << "the reference is what is tested";
  }
}

TEST_P(FusedKernelsTest, NanStaysAndMinusInfinityHasNoProbability) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  Array logits(GetParam(), std::vector<float>{1, -infinity, 2, 0.5f});
  Array bad(GetParam(), std::vector<float>{1, nan, 2, 0.5f});
  const int64_t target = 2;
  float lse = 0, loss = 0;
  CrossEntropyArgs args;
  args.logits = args.dlogits = logits.data();
  args.target = &target;
  args.lse = &lse;
  args.loss = &loss;
  args.columns = 4;
  args.element = GetParam();
  active_fused_kernels().cross_entropy(args, 0, 1);
  active_fused_kernels().cross_entropy_backward(args, 0, 1);
  EXPECT_NEAR(loss, std::log(std::exp(1.0) + std::exp(2.0) + std::exp(0.5)) - 2, 1e-6);
  EXPECT_EQ(logits.at(1), 0);
  args.logits = bad.data();
  active_fused_kernels().cross_entropy(args, 0, 1);
  EXPECT_TRUE(std::isnan(loss));
}

// A row's result does not depend on which rows a call treats.
TEST_P(FusedKernelsTest, RowsAreIndependent) {
  const Shape shape{GetParam(), 4, 37};
  const FusedKernelSet& set = active_fused_kernels();
  const Bytes whole = run_layer_norm(set, shape);
  FusedKernelSet by_row = set;
  by_row.layer_norm = [](const LayerNormArgs& args, int64_t begin, int64_t end) {
    for (int64_t row = end - 1; row >= begin; --row) {
      active_fused_kernels().layer_norm(args, row, row + 1);
    }
  };
  EXPECT_TRUE(run_layer_norm(by_row, shape) == whole);
}

} // namespace
} // namespace trireme::kernels
