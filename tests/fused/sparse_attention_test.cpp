// Block-sparse attention: attention to all keys with the layout's mask, forward and gradients.
#include <trireme/fused/sparse_attention.h>

#include <trireme/base/error.h>
#include <trireme/kernels/simd.h>

#include <gmock/gmock.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cstdlib>
#include <random>

namespace trireme::fused {
namespace {

using attention::Kind;
using attention::LayoutOptions;

struct SparseCase {
  LayoutOptions options;
  int64_t samples, heads, kv_heads, tokens, head_size;
};

SparseCase random_case(std::mt19937& random) {
  const auto one_of = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random()) % (most - least + 1);
  };
  SparseCase one;
  LayoutOptions& options = one.options;
  options.kind = static_cast<Kind>(one_of(0, 5));
  options.block = int64_t{16} << one_of(0, 3);
  options.causal = one_of(0, 1) == 1;
  options.different_layout_per_head = one_of(0, 1) == 1;
  options.num_global_blocks = one_of(1, 2);
  options.num_local_blocks = options.num_global_blocks * one_of(1, 3);
  options.horizontal_global_attention = !options.causal && one_of(0, 1) == 1;
  options.num_random_blocks = one_of(0, 2);
  options.local_window_blocks = {one_of(1, 3), one_of(1, 3)};
  options.global_block_indices = {one_of(0, 6)};
  options.num_sliding_window_blocks = one_of(1, 5);
  options.seed = random();
  one.samples = one_of(1, 2);
  one.kv_heads = one_of(1, 2);
  one.heads = one.kv_heads * one_of(1, 2);
  one.tokens = one_of(0, 9) == 0 ? one_of(1025, 2200) : one_of(1, 400);
  one.head_size = one_of(0, 3) == 0 ? one_of(1, 70) : 16 * one_of(1, 4);
  return one;
}

std::string describe(const SparseCase& one) {
  return concat(kind_name(one.options.kind), one.options.causal ? " causal" : "", ", blocks of ", one.options.block,
                ", B ", one.samples, " A ", one.heads, " K ", one.kv_heads, " T ", one.tokens, " D ", one.head_size);
}

struct Results {
  at::Tensor out, dq, dk, dv;
};

template <class F>
Results results(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& dout,
                const F& attend) {
  const at::Tensor own_q = q.detach().requires_grad_(), own_k = k.detach().requires_grad_(),
                   own_v = v.detach().requires_grad_();
  const at::Tensor out = attend(own_q, own_k, own_v);
  const auto grads = torch::autograd::grad({out}, {own_q, own_k, own_v}, {dout.to(out.scalar_type())});
  return {out.detach(), grads[0], grads[1], grads[2]};
}

Results expected_of(const SparseCase& one, const attention::BlockLayout& layout, const at::Tensor& q,
                    const at::Tensor& k, const at::Tensor& v, const at::Tensor& dout) {
  const at::Tensor mask = mask_of(layout, one.tokens);
  return results(
      q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), dout,
      [&](const at::Tensor& some_q, const at::Tensor& some_k, const at::Tensor& some_v) {
        const auto shared = [&](const at::Tensor& x) { // each head of keys by the heads of queries that use it
          return x.repeat_interleave(one.heads / one.kv_heads, 1);
        };
        const at::Tensor scores =
            some_q.matmul(shared(some_k).transpose(2, 3)) / std::sqrt(static_cast<double>(one.head_size));
        return scores.masked_fill(mask.logical_not(), -INFINITY).softmax(-1).matmul(shared(some_v));
      });
}

double error_of(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected).abs().max().item<double>() /
         std::max(1.0, expected.abs().max().item<double>());
}

class SparseAttentionTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    if (name != "scalar" && !kernels::supported(name == "avx2" ? kernels::Simd::avx2 : kernels::Simd::avx512)) {
      GTEST_SKIP() << "this machine has no " << name;
    }
    ::setenv("TRIREME_SIMD", GetParam(), 1); // before anybody asks for kernels
  }
};

TEST_P(SparseAttentionTest, IsDenseAttentionWithTheLayoutsMask) {
  const bool slow = std::string(GetParam()) == "scalar";
  const char* const many = std::getenv("TRIREME_LONG_TESTS");
  const int cases = many != nullptr ? 2000 : slow ? 10 : 60;
  std::mt19937 random(11);
  torch::manual_seed(5);
  for (int i = 0; i < cases; ++i) {
    const SparseCase one = random_case(random);
    const at::ScalarType type = i % 4 == 3 ? at::kBFloat16 : at::kFloat;
    const auto layout =
        std::make_shared<const attention::BlockLayout>(attention::make_layout(one.options, one.heads, one.tokens));
    const auto rows = [&](int64_t heads) { // as views of a projection
      return torch::randn({one.samples, one.tokens, heads, one.head_size}).to(type).transpose(1, 2);
    };
    const at::Tensor q = rows(one.heads), k = rows(one.kv_heads), v = rows(one.kv_heads), dout = rows(one.heads);
    const Results expected = expected_of(one, *layout, q, k, v, dout);
    const Results found = results(q, k, v, dout, [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
      return sparse_attention(a, b, c, layout);
    });
    const double limit = type == at::kFloat ? 1e-5 : 2e-2;
    EXPECT_LT(error_of(found.out, expected.out), limit) << describe(one);
    EXPECT_LT(error_of(found.dq, expected.dq), limit) << describe(one);
    EXPECT_LT(error_of(found.dk, expected.dk), limit) << describe(one);
    EXPECT_LT(error_of(found.dv, expected.dv), limit) << describe(one);
    ASSERT_FALSE(HasFailure());
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, SparseAttentionTest, testing::Values("avx512", "avx2", "scalar"),
                         [](const auto& info) { return std::string(info.param); });

TEST(SparseAttentionErrorsTest, NameTheSizes) {
  const auto layout = std::make_shared<const attention::BlockLayout>(attention::make_layout({}, 2, 64));
  const auto message = [&](const at::Tensor& q, const at::Tensor& k) {
    try {
      sparse_attention(q, k, k, layout);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(message(torch::randn({1, 2, 64, 8}), torch::randn({1, 1, 64, 8})), "none");
  EXPECT_THAT(message(torch::randn({1, 3, 64, 8}), torch::randn({1, 2, 64, 8})), testing::HasSubstr("K divides A"));
  EXPECT_THAT(message(torch::randn({1, 2, 65, 8}), torch::randn({1, 2, 65, 8})),
              testing::HasSubstr("the layout has 4 blocks and 1 patterns, but 65 tokens have 5 blocks"));
}

TEST(SparseAttentionErrorsTest, TypesTokensAndRows) {
  const auto layout = std::make_shared<const attention::BlockLayout>(attention::make_layout({}, 2, 64));
  const at::Tensor x = torch::randn({1, 2, 64, 16});
  EXPECT_THROW(sparse_attention(x, x.to(at::kBFloat16), x.to(at::kBFloat16), layout), InputError);
  EXPECT_EQ(sparse_attention(x.narrow(2, 0, 0), x.narrow(2, 0, 0), x.narrow(2, 0, 0), layout).size(2), 0);
  EXPECT_THROW(attention::make_layout({}, 2, 0), InputError);
  EXPECT_THROW(attention::BlockLayout(20, 4, false), InputError);
  auto empty = std::make_shared<attention::BlockLayout>(16, 4, false);
  empty->add_pattern([](int64_t row) { return row == 2 ? std::vector<int32_t>() : std::vector<int32_t>{0}; });
  EXPECT_THROW(sparse_attention(x, x, x, empty), InputError);
}

} // namespace
} // namespace trireme::fused
