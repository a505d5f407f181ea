// What one token of each of a few texts needs: attention to kept keys, products in one region, int8 weights.
#include <trireme/fused/fused.h>
#include <trireme/fused/int8.h>

#include <trireme/base/error.h>

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/utils.h>

#include <limits>

namespace trireme::fused {
namespace {

at::Tensor in_double(const at::Tensor& x) {
  return x.to(at::kDouble);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (in_double(a) - in_double(b)).abs().max().item<double>();
}

struct Texts {
  int64_t heads, kv_heads, head_size, window;
  std::vector<int64_t> lengths;
};

std::vector<Texts> all_texts() {
  return {{1, 1, 1, 0, {1}},          {4, 4, 16, 0, {5}},
          {9, 3, 64, 0, {30, 1, 17}}, {6, 2, 10, 7, {3, 40, 8, 7, 6}},
          {5, 1, 33, 0, {2, 19}},     {8, 2, 128, 0, {1000, 257, 256}}, // divided among threads
          {3, 3, 20, 300, {900, 100}}};
}

// Tensors of a model's layer: heads lie between the features of a token.
struct Token {
  explicit Token(const Texts& texts, at::ScalarType type) {
    const auto B = static_cast<int64_t>(texts.lengths.size());
    const int64_t capacity = *std::ranges::max_element(texts.lengths) + 3, D = texts.head_size;
    const at::Tensor qkv = torch::randn({B, 1, texts.heads + 2 * texts.kv_heads, D}, type).transpose(1, 2);
    q = qkv.narrow(1, 0, texts.heads);
    k = qkv.narrow(1, texts.heads, texts.kv_heads);
    v = qkv.narrow(1, texts.heads + texts.kv_heads, texts.kv_heads);
    kept_k = torch::randn({B, texts.kv_heads, capacity, D}, type);
    kept_v = torch::randn({B, texts.kv_heads, capacity, D}, type);
    if (D % 2 == 0) {
      cos = torch::randn({capacity, D / 2});
      sin = torch::randn({capacity, D / 2});
    }
  }
  at::Tensor q, k, v, kept_k, kept_v, cos, sin;
};

TEST(KeptAttentionTest, EqualsAtensAttentionInDouble) {
  const c10::InferenceMode inference;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Texts& texts : all_texts()) {
      SCOPED_TRACE(concat(texts.heads, " heads of ", texts.head_size, ", window ", texts.window, ", ", type));
      torch::manual_seed(5);
      const Token token(texts, type);
      ASSERT_TRUE(has_kept_attention(token.q, token.kept_k));
      const at::Tensor k_before = token.kept_k.clone(), v_before = token.kept_v.clone();
      const at::Tensor out = attend_to_kept(token.q, token.k, token.v, {token.kept_k, token.kept_v, texts.lengths},
                                            token.cos, token.sin, texts.window);
      ASSERT_EQ(out.sizes(), token.q.sizes());
      for (size_t i = 0; i < texts.lengths.size(); ++i) {
        const auto b = static_cast<int64_t>(i);
        const int64_t length = texts.lengths[i];
        const auto row = [&](const at::Tensor& x) { return x.narrow(0, b, 1); };
        at::Tensor q = row(token.q), k = row(token.k);
        if (token.cos.defined()) {
          std::tie(q, k) = rotate(q, k, token.cos.narrow(0, length - 1, 1), token.sin.narrow(0, length - 1, 1));
        }
        k_before[b].narrow(1, length - 1, 1).copy_(k[0]);
        v_before[b].narrow(1, length - 1, 1).copy_(token.v[b]);
        const int64_t seen = texts.window > 0 ? std::min(texts.window, length) : length;
        const auto keys = [&](const at::Tensor& x) {
          return in_double(row(x).narrow(2, length - seen, seen)).repeat_interleave(texts.heads / texts.kv_heads, 1);
        };
        const at::Tensor expected =
            at::scaled_dot_product_attention(in_double(q), keys(token.kept_k), keys(token.kept_v));
        EXPECT_LE(difference(row(out), expected), type == at::kFloat ? 1e-5 : 0x1p-7) << "text " << b;
      }
      EXPECT_TRUE(token.kept_k.equal(k_before) && token.kept_v.equal(v_before)) << "nothing else is written";
    }
  }
}

TEST(KeptAttentionTest, ThreadsAndOtherTextsDoNotChangeABit) {
  const c10::InferenceMode inference;
  const int before = at::get_num_threads();
  for (const Texts& texts : all_texts()) {
    torch::manual_seed(5);
    const Token token(texts, at::kFloat);
    const auto attend = [&](int64_t b, int64_t count) {
      const auto rows = [&](const at::Tensor& x) { return x.narrow(0, b, count); };
      const std::vector<int64_t> lengths(texts.lengths.begin() + b, texts.lengths.begin() + b + count);
      return attend_to_kept(rows(token.q), rows(token.k), rows(token.v),
                            {rows(token.kept_k), rows(token.kept_v), lengths}, token.cos, token.sin, texts.window);
    };
    const auto all = static_cast<int64_t>(texts.lengths.size());
    const at::Tensor out = attend(0, all);
    at::set_num_threads(1);
    EXPECT_TRUE(out.equal(attend(0, all)));
    at::set_num_threads(before);
    EXPECT_TRUE(out.narrow(0, all - 1, 1).equal(attend(all - 1, 1)));
  }
}

TEST(KeptAttentionTest, SizesThatDoNotFitAreRefused) {
  const c10::InferenceMode inference;
  const Texts texts{4, 2, 8, 0, {3, 5}};
  const Token t(texts, at::kFloat);
  const std::vector<int64_t> longer = {3, 9}, fewer = {3}, empty = {3, 0};
  const auto attend = [&](const at::Tensor& q, const at::Tensor& k, const std::vector<int64_t>& lengths,
                          const at::Tensor& cos) {
    return attend_to_kept(q, k, t.v, {t.kept_k, t.kept_v, lengths}, cos, t.sin, 0);
  };
  EXPECT_NO_THROW(attend(t.q, t.k, texts.lengths, t.cos));
  EXPECT_THROW(attend(t.q, t.k, longer, t.cos), InputError);
  EXPECT_THROW(attend(t.q, t.k, fewer, t.cos), InputError);
  EXPECT_THROW(attend(t.q, t.k, empty, t.cos), InputError);
  EXPECT_THROW(attend(t.q, t.q, texts.lengths, t.cos), InputError);
  EXPECT_THROW(attend(t.q.narrow(1, 0, 3), t.k, texts.lengths, t.cos), InputError);
  EXPECT_THROW(attend(t.q, t.k, texts.lengths, t.cos.narrow(0, 0, 4)), InputError);
  EXPECT_THROW(attend(t.q, t.k, texts.lengths, t.cos.narrow(1, 0, 3)), InputError);
}

TEST(LinearsTest, AreTheProductsOfEach) {
  torch::manual_seed(2);
  for (const int64_t rows : {1, 8, 9}) {
    const at::Tensor x = torch::randn({rows, 1, 70});
    const std::vector<at::Tensor> weights = {torch::randn({900, 70}), torch::randn({3, 70}), torch::randn({64, 70})};
    const std::vector<at::Tensor> biases = {torch::randn({900}), torch::randn({3}), torch::randn({64})};
    for (const bool inference : {false, true}) {
      const c10::InferenceMode mode(inference);
      const auto with = linears(x, weights, biases), without = linears(x, weights, {});
      for (size_t i = 0; i < weights.size(); ++i) {
        EXPECT_TRUE(with[i].equal(fused::linear(x, weights[i], biases[i])));
        EXPECT_TRUE(without[i].equal(fused::linear(x, weights[i])));
      }
    }
  }
}

TEST(Int8Test, EachWeightIsWrongByHalfAScaleAtMost) {
  torch::manual_seed(3);
  for (const int64_t columns : {1, 4, 63, 64, 65, 68, 127, 130, 200}) {
    at::Tensor weight = torch::randn({7, columns});
    weight[3].zero_();
    weight[4].mul_(1e-42); // denormal, and so is its scale, which rounds
    const at::Tensor packed = pack_int8(weight);
    ASSERT_TRUE(is_int8(packed));
    ASSERT_EQ(columns_of_int8(packed), columns);
    const at::Tensor back = unpack_int8(packed, at::kFloat);
    ASSERT_EQ(back.sizes(), weight.sizes());
    for (int64_t begin = 0; begin < columns; begin += 64) {
      const int64_t count = std::min<int64_t>(64, columns - begin);
      const at::Tensor group = weight.narrow(1, begin, count), got = back.narrow(1, begin, count);
      const at::Tensor most = group.abs().amax(1, true);
      EXPECT_TRUE(((got - group).abs() <= most / 254 * 1.0001 + 2e-43).all().item<bool>()) << columns;
    }
    EXPECT_TRUE(back[3].equal(weight[3]));
    EXPECT_TRUE(pack_int8(back).equal(packed)) << "packing what was unpacked changes nothing";
  }
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    at::Tensor weight = torch::randn({3, 70});
    weight[1][66] = bad;
    EXPECT_THROW(pack_int8(weight), InputError);
  }
  EXPECT_THROW(pack_int8(torch::randn({3})), InputError);
}

TEST(Int8Test, LinearIsTheProductWithTheUnpackedWeight) {
  torch::manual_seed(4);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [columns, outputs] :
         {std::pair<int64_t, int64_t>{1, 1}, {64, 3}, {77, 5}, {300, 70}, {576, 200}}) {
      const at::Tensor packed = pack_int8(torch::randn({outputs, columns}));
      const at::Tensor bias = torch::randn({outputs}, type);
      for (const int64_t rows : {1, 2, 7, 13, 64, 65}) {
        SCOPED_TRACE(concat(rows, " rows of ", columns, ", ", outputs, " outputs, ", type));
        const at::Tensor x = torch::randn({rows, columns}, type);
        const at::Tensor expected = at::linear(in_double(x), unpack_int8(packed, at::kDouble), in_double(bias));
        const double most = std::max(expected.abs().max().item<double>(), 1.0);
        for (const bool inference : {false, true}) {
          const c10::InferenceMode mode(inference);
          const at::Tensor y = fused::linear(x, packed, bias);
          ASSERT_EQ(y.scalar_type(), type);
          // Without InferenceMode a bf16 x multiplies weights rounded to bf16.
          EXPECT_LE(difference(y, expected), (type == at::kFloat        ? 1e-5
                                              : inference && rows <= 64 ? 0x1p-8
                                                                        : 0x1p-6) *
                                                 most);
          if (inference && rows <= 64) {
            EXPECT_TRUE(y.narrow(0, rows - 1, 1).equal(fused::linear(x.narrow(0, rows - 1, 1), packed, bias)));
          }
        }
      }
    }
  }
}

TEST(Int8Test, EmbeddingReadsRows) {
  torch::manual_seed(6);
  const at::Tensor packed = pack_int8(torch::randn({11, 70}));
  const at::Tensor ids = torch::randint(11, {2, 3}, at::kLong);
  EXPECT_TRUE(fused::embedding(packed, ids).equal(at::embedding(unpack_int8(packed, at::kFloat), ids)));
}

} // namespace
} // namespace trireme::fused
