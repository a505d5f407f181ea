#include <trireme/parallel/context/block.h>

#include <trireme/base/error.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/utils.h>

#include <gmock/gmock.h>

#include <cmath>

namespace trireme::context {
namespace {

/// What a block is, in fp64: results, and gradients that follow from `dout`. Where a query sees no key its result is 0.
struct Written {
  at::Tensor out, lse, q, k, v;
};
Written written_out(const Block& block, const at::Tensor& dout) {
  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).detach().requires_grad_(); };
  const at::Tensor q = leaf(block.q), k = leaf(block.k), v = leaf(block.v);
  const auto repeat = [&](const at::Tensor& x) { return x.repeat_interleave(q.size(1) / x.size(1), 1); };
  at::Tensor scores = at::matmul(q, repeat(k).transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  const double never = -std::numeric_limits<double>::infinity();
  if (block.causal) {
    const at::Tensor all = at::ones({q.size(2), k.size(2)}, at::kBool);
    scores =
        scores.masked_fill(block.window > 0 ? all.triu(1).logical_or(all.tril(-block.window)) : all.triu(1), never);
  }
  if (block.key_padding.defined()) {
    scores = scores.masked_fill(block.key_padding.logical_not().view({k.size(0), 1, 1, k.size(2)}), never);
  }
  const at::Tensor out = at::matmul(at::softmax(scores, -1).nan_to_num(0), repeat(v));
  out.backward(dout.to(at::kDouble));
  return {out.detach(), at::logsumexp(scores.detach(), {-1}), q.grad().nan_to_num(0), k.grad().nan_to_num(0),
          v.grad().nan_to_num(0)};
}

/// Both forms of the block, flash and matrix products, against softmax written out with a matrix of all scores.
class ContextBlockTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { at::globalContext().setSDPUseFlash(GetParam()); }
  void TearDown() override { at::globalContext().setSDPUseFlash(true); }
};

TEST_P(ContextBlockTest, EqualsSoftmaxWrittenOut) {
  torch::manual_seed(3);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto& [queries, keys, causal, padded] : {std::tuple(7, 7, true, false), std::tuple(5, 9, false, false),
                                                        std::tuple(5, 9, false, true), std::tuple(1, 1, true, false)}) {
      for (const int64_t kv_heads : {4, 2, 1}) {
        const auto random = [&](int64_t heads, int64_t tokens) {
          return at::randn({3, heads, tokens, 6}, at::kDouble).to(type);
        };
        Block block{
            .q = random(4, queries), .k = random(kv_heads, keys), .v = random(kv_heads, keys), .causal = causal};
        if (padded) {
          block.key_padding =
              at::arange(keys).unsqueeze(0) < at::tensor({9, 4, 0}).unsqueeze(1); // the last sample has no key at all
        }
        const at::Tensor dout = random(4, queries);
        const Written written = written_out(block, dout);

        const double tolerance = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 3e-2;
        const BlockResult result = forward(block);
        const auto near = [&](const at::Tensor& found, const at::Tensor& wanted, const char* what) {
          const double off = (found.to(at::kDouble) - wanted).abs().nan_to_num(0).max().item<double>(); // -inf - -inf
          EXPECT_LE(off, tolerance * std::max(1.0, wanted.nan_to_num(0, 0, 0).abs().max().item<double>()))
              << what << " " << c10::toString(type) << " " << queries << "x" << keys;
          EXPECT_TRUE(found.to(at::kDouble).isneginf().equal(wanted.isneginf())) << what;
          EXPECT_FALSE(found.isnan().any().item<bool>()) << what;
        };
        near(result.out, written.out, "out");
        near(result.lse, written.lse, "lse");
        EXPECT_EQ(result.lse.scalar_type(), type_of_sums(block.q));
        const BlockGradients grads = backward(block, dout, result.out, result.lse);
        near(grads.q, written.q, "dq");
        near(grads.k, written.k, "dk");
        near(grads.v, written.v, "dv");
      }
    }
  }
}

// More scores than the plain form holds at a time, and dropout, which always takes it: pieces of queries must fit
// together.
TEST_P(ContextBlockTest, ManyPieces) {
  torch::manual_seed(4);
  Block block{.q = at::randn({1, 8, 1500, 4}),
              .k = at::randn({1, 8, 1500, 4}),
              .v = at::randn({1, 8, 1500, 4}),
              .causal = true}; // 18 M scores
  const BlockResult found = forward(block);
  const at::Tensor wanted = at::scaled_dot_product_attention(block.q, block.k, block.v, {}, 0.0, true);
  EXPECT_LT((found.out - wanted).abs().max().item<float>(), 1e-5);
  const BlockResult part = forward(
      {.q = block.q.narrow(2, 0, 700), .k = block.k.narrow(2, 0, 700), .v = block.v.narrow(2, 0, 700), .causal = true});
  EXPECT_LT((found.out.narrow(2, 0, 700) - part.out).abs().max().item<float>(), 1e-5);
  block.dropout = 0.5;
  block.seed = 5;
  const at::Tensor once = forward(block).out;
  EXPECT_TRUE(once.equal(forward(block).out)) << "the seed says what is dropped";
  block.seed = 6;
  EXPECT_FALSE(once.equal(forward(block).out));
  block.dropout = 1;
  EXPECT_EQ(forward(block).out.abs().max().item<float>(), 0);
}

// More keys than our kernel takes at a time: the pieces are one softmax, and queries get and give the gradients of all
// of them.
TEST_P(ContextBlockTest, ManyKeys) {
  torch::manual_seed(5);
  for (const auto& [queries, keys, causal] : {std::tuple(300, 2300, false), std::tuple(2300, 2300, true),
                                              std::tuple(1024, 1024, true), std::tuple(2048, 2048, true)}) {
    const Block block{.q = at::randn({1, 2, queries, 8}),
                      .k = at::randn({1, 2, keys, 8}),
                      .v = at::randn({1, 2, keys, 8}),
                      .causal = causal};
    const at::Tensor dout = at::randn(block.q.sizes());
    const Written written = written_out(block, dout);
    const BlockResult result = forward(block);
    const BlockGradients grads = backward(block, dout, result.out, result.lse);
    const auto off = [](const at::Tensor& found, const at::Tensor& wanted) {
      return (found - wanted).abs().max().item<double>();
    };
    EXPECT_LT(off(result.out, written.out), 1e-5) << queries << " x " << keys;
    EXPECT_LT(off(result.lse, written.lse), 1e-5) << queries << " x " << keys;
    EXPECT_LT(off(grads.q, written.q), 2e-5) << queries << " x " << keys;
    EXPECT_LT(off(grads.k, written.k), 1e-4) << queries << " x " << keys;
    EXPECT_LT(off(grads.v, written.v), 1e-4) << queries << " x " << keys;
  }
}

// Windows from one token to all, across the kernel's blocks of queries, panels and pieces of keys, for heads alone and
// grouped.
TEST_P(ContextBlockTest, Windows) {
  torch::manual_seed(6);
  for (const auto& [tokens, window] :
       {std::tuple(7, 1), std::tuple(7, 3), std::tuple(130, 64), std::tuple(130, 65), std::tuple(300, 47),
        std::tuple(300, 299), std::tuple(2300, 5), std::tuple(2300, 700), std::tuple(2300, 1500)}) {
    for (const int64_t kv_heads : tokens < 1000 ? std::vector<int64_t>{4, 2, 1} : std::vector<int64_t>{2}) {
      Block block{.q = at::randn({1, 4, tokens, 6}),
                  .k = at::randn({1, kv_heads, tokens, 6}),
                  .v = at::randn({1, kv_heads, tokens, 6}),
                  .causal = true};
      block.window = window;
      const at::Tensor dout = at::randn(block.q.sizes());
      const Written written = written_out(block, dout);
      const BlockResult result = forward(block);
      const BlockGradients grads = backward(block, dout, result.out, result.lse);
      const auto off = [](const at::Tensor& found, const at::Tensor& wanted) { // NaN is not less
        return (found - wanted).abs().max().item<double>();
      };
      const std::string where = concat(tokens, " tokens, window ", window, ", ", kv_heads, " heads of keys");
      EXPECT_LT(off(result.out, written.out), 1e-5) << where;
      EXPECT_LT(off(result.lse, written.lse), 1e-5) << where;
      EXPECT_LT(off(grads.q, written.q), 1e-4) << where;
      EXPECT_LT(off(grads.k, written.k), 1e-4) << where;
      EXPECT_LT(off(grads.v, written.v), 1e-4) << where;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, ContextBlockTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "flash" : "products"; });

} // namespace
} // namespace trireme::context
