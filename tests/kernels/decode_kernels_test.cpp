// The kernels that read one token of each of a few texts.
#include "fused_arrays.h"

#include <gmock/gmock.h>

#include <tuple>
#include <vector>

namespace trireme::kernels {
namespace {

/// As many outputs as columns, and some; in two ranges.
Bytes run_few_rows(const FusedKernelSet& set, const Shape& s, const unsigned char* weight) {
  const int64_t outputs = s.columns + 3;
  const std::vector<float> x = random_values(s.rows * s.columns, 1), bias = random_values(outputs, 2);
  Bytes all;
  for (const Element result : {Element::f32, Element::bf16}) {
    Array y(result, s.rows * outputs);
    const FewRowsArgs args{.x = x.data(),
                           .weight = weight,
                           .bias = bias.data(),
                           .y = y.data(),
                           .rows = s.rows,
                           .columns = s.columns,
                           .outputs = outputs,
                           .element = s.element,
                           .result = result};
    set.few_rows(args, 0, outputs / 2);
    set.few_rows(args, outputs / 2, outputs);
    append(all, y.bytes());
  }
  return all;
}

/// Rows of int8 weights of exactly this many columns: a read past the end is out of bounds.
Bytes int8_weight(int64_t outputs, int64_t columns) {
  const int64_t groups = (columns + kInt8Group - 1) / kInt8Group;
  const std::vector<float> scales = random_values(outputs * groups, 5),
                           values = random_values(outputs * columns, 6, 40);
  Bytes packed;
  for (int64_t row = 0; row < outputs; ++row) {
    append(packed, std::vector<float>(scales.begin() + row * groups, scales.begin() + (row + 1) * groups));
    for (int64_t j = 0; j < columns; ++j) {
      packed.push_back(static_cast<unsigned char>(
          static_cast<int8_t>(std::min(127.0f, std::max(-127.0f, values[static_cast<size_t>(row * columns + j)])))));
    }
  }
  return packed;
}

struct KeptShape {
  int64_t heads, kv_heads, head_size, window, block;
  std::vector<int64_t> lengths;
};

/// Keys and values are exactly as long as the longest text of the last sample: a read past the end is out of bounds.
Bytes run_cached_attention(const FusedKernelSet& set, Element element, const KeptShape& s) {
  const int64_t capacity = *std::max_element(s.lengths.begin(), s.lengths.end());
  const auto samples = static_cast<int64_t>(s.lengths.size());
  const int64_t kept = samples * s.kv_heads * capacity * s.head_size, n = samples * s.heads * s.head_size;
  Array q(element, random_values(n, 1)), k(element, random_values(kept, 2)), v(element, random_values(kept, 3)),
      out(element, n);
  CachedAttentionArgs args;
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.q_at = args.out_at = {s.heads * s.head_size, s.head_size, 0};
  args.k_at = args.v_at = {s.kv_heads * capacity * s.head_size, capacity * s.head_size, s.head_size};
  args.lengths = s.lengths.data();
  args.window = s.window;
  args.out = out.data();
  args.scale = 0.3f;
  args.heads = s.heads;
  args.kv_heads = s.kv_heads;
  args.head_size = s.head_size;
  args.block = s.block;
  args.blocks = (capacity + s.block - 1) / s.block;
  args.element = element;
  std::vector<float> partial(static_cast<size_t>(samples * s.heads * args.blocks * (s.head_size + 2)),
                             std::numeric_limits<float>::quiet_NaN());
  args.partial = partial.data();
  const int64_t tasks = samples * s.kv_heads * args.blocks;
  set.cached_attention(args, tasks / 2, tasks);
  set.cached_attention(args, 0, tasks / 2);
  set.cached_attention_join(args, 0, samples * s.heads);
  return out.bytes();
}

class DecodeKernelsTest : public FusedKernelsTest {};

INSTANTIATE_TEST_SUITE_P(Elements, DecodeKernelsTest, testing::Values(Element::f32, Element::bf16),
                         [](const auto& info) { return info.param == Element::bf16 ? "bf16" : "f32"; });

TEST_P(DecodeKernelsTest, EveryInstructionSetGivesTheSameProducts) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 15}, {2, 16}, {5, 33}, {2, 130}, {1, 200}, {14, 20}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << columns);
    Array weight(GetParam(), random_values((columns + 3) * columns, 3));
    const Bytes packed = int8_weight(columns + 3, columns);
    expect_same_bits([&, rows = rows, columns = columns](const FusedKernelSet& set) {
      return run_few_rows(set, {GetParam(), rows, columns}, weight.data());
    });
    expect_same_bits([&, rows = rows, columns = columns](const FusedKernelSet& set) {
      return run_few_rows(set, {Element::i8, rows, columns}, packed.data());
    });
  }
}

TEST_P(DecodeKernelsTest, EveryInstructionSetGivesTheSameCachedAttention) {
  for (const KeptShape& shape : {KeptShape{1, 1, 1, 0, 256, {1}},
                                 {6, 2, 33, 0, 256, {50, 1, 17}},
                                 {9, 3, 64, 0, 16, {40, 33, 16, 15}},
                                 {7, 1, 20, 30, 16, {90, 10, 31}},
                                 {4, 4, 16, 1, 8, {9, 1}},
                                 {2, 1, 8, 0, 256, {700, 256}}}) {
    SCOPED_TRACE(testing::Message() << shape.heads << " heads of " << shape.head_size << ", window " << shape.window);
    expect_same_bits([&](const FusedKernelSet& set) { return run_cached_attention(set, GetParam(), shape); });
  }
}

} // namespace
} // namespace trireme::kernels
