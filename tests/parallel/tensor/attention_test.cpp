// Attention whose heads are split among ranks equals the formula in one process: outputs, gradients of the input and of
// every parameter.
#include <trireme/parallel/tensor/attention.h>

#include "whole_and_parts.h"

#include <tests/support/run_ranks.h>

#include <trireme/base/error.h>
#include <trireme/parallel/context/sequence.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <vector>

namespace trireme::tensor {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

/// The four projections of one process and the formula: every head of keys and values repeated, all T x T scores.
struct WholeAttention : torch::nn::Module {
  explicit WholeAttention(const ParallelAttentionOptions& options)
      : options(options),
        head_size(options.head_size > 0 ? options.head_size : options.hidden / options.heads),
        kv_heads(options.kv_heads > 0 ? options.kv_heads : options.heads) {
    const auto linear = [&](const char* name, int64_t in, int64_t out, bool bias) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias)));
    };
    q = linear("q_proj", options.hidden, options.heads * head_size, options.bias);
    k = linear("k_proj", options.hidden, kv_heads * head_size, options.bias);
    v = linear("v_proj", options.hidden, kv_heads * head_size, options.bias);
    o = linear("o_proj", options.heads * head_size, options.hidden, options.output_bias);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& key_padding) {
    const auto heads_of = [&](const at::Tensor& y) {
      return y.reshape({y.size(0), y.size(1), -1, head_size}).transpose(1, 2);
    };
    const auto repeated = [&](const at::Tensor& y) {
      return at::repeat_interleave(heads_of(y), options.heads / kv_heads, 1);
    };
    at::Tensor scores = heads_of(q->forward(x)).matmul(repeated(k->forward(x)).transpose(2, 3)) /
                        std::sqrt(static_cast<double>(head_size));
    if (options.causal) {
      scores = scores.masked_fill(torch::ones({x.size(1), x.size(1)}, torch::kBool).triu(1), -INFINITY);
    }
    if (key_padding.defined()) {
      scores = scores.masked_fill(key_padding.logical_not().view({x.size(0), 1, 1, x.size(1)}), -INFINITY);
    }
    return o->forward(scores.softmax(-1).matmul(repeated(v->forward(x))).transpose(1, 2).flatten(2));
  }

  ParallelAttentionOptions options;
  int64_t head_size, kv_heads;
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
};

struct AttentionCase {
  ParallelAttentionOptions options;
  bool sequence_parallel = false;
  int context = 1; ///< ranks that share the tokens
  at::ScalarType type = at::kDouble;
  bool padded = false;
};

void check_attention(comm::World& world, AttentionCase given) {
  at::set_num_threads(1);
  const int n = world.size() / given.context;
  // Neighbours share the heads. Every rank makes every group.
  Ranks ranks{{}, given.sequence_parallel};
  comm::Group across;
  for (int first = 0; first < world.size(); first += n) {
    std::vector<int> members(n);
    std::iota(members.begin(), members.end(), first);
    const comm::Group group = world.group().subgroup(members, "tensor");
    ranks.group = world.rank() / n == first / n ? group : ranks.group;
  }
  for (int first = 0; first < n; ++first) {
    std::vector<int> members(given.context);
    std::generate(members.begin(), members.end(), [next = first - n, n]() mutable { return next += n; });
    const comm::Group group = world.group().subgroup(members, "context");
    across = world.rank() % n == first ? group : across;
  }
  torch::manual_seed(7);
  WholeAttention whole(given.options);
  given.options.context = across;
  torch::manual_seed(7);
  ParallelAttention mine(given.options, ranks);
  const double tolerance = given.type == at::kDouble ? 1e-10 : 2e-5;
  for (const auto& item : mine->named_parameters()) {
    expect_part(item.value(), whole.named_parameters()[item.key()], *mine, item.key(), 0);
  }
  whole.to(given.type);
  mine->to(given.type);

  const int64_t tokens = 4 * world.size();
  const at::Tensor padding =
      given.padded ? torch::arange(2 * tokens).remainder(5).ne(3).view({2, tokens}) : at::Tensor();
  const at::Tensor x_whole = wave({2, tokens, given.options.hidden}, given.type).set_requires_grad(true);
  const at::Tensor weights = wave({2, tokens, given.options.hidden}, given.type).add(0.3);
  const at::Tensor expected = whole.forward(x_whole, padding);
  (expected * weights).sum().backward();

  const auto here = [&](const at::Tensor& x) {
    return context::take_tokens(x, given.options.context, given.options.context_kind, 1);
  };
  const auto part = [&](const at::Tensor& x) {
    return ranks.splits_sequence() ? here(x).chunk(n, 1)[ranks.group.rank()] : here(x);
  };
  const at::Tensor x = part(x_whole.detach()).clone().set_requires_grad(true);
  const at::Tensor y = mine->forward(x, given.padded ? here(padding) : padding);
  expect_close(y, part(expected), "output", tolerance);
  (y * part(weights)).sum().backward();
  expect_close(x.grad(), part(x_whole.grad()), "gradient of the input", tolerance);
  for (const auto& item : mine->named_parameters()) {
    const at::Tensor grad = item.value().grad().clone();
    if (ranks.splits_sequence() && item.key() == "o_proj.bias") { // each rank has the summand of its tokens
      ranks.group.all_reduce(grad).wait();
    }
    given.options.context.all_reduce(grad).wait();
    expect_part(grad, whole.named_parameters()[item.key()].grad(), *mine, item.key(), tolerance);
  }
}

void expect_equal(int ranks, const AttentionCase& given, const char* backend = "shm") {
  EXPECT_THAT(run_ranks(ranks, [&](comm::World& world) { check_attention(world, given); }, {.backend = backend}),
              IsEmpty())
      << ranks << " ranks, " << backend << ", " << given.options.heads << " heads, " << given.options.kv_heads
      << " of keys, sequence_parallel " << given.sequence_parallel << ", context " << given.context;
}

TEST(TensorAttentionTest, EqualsTheFormula) {
  for (const auto& [ranks, heads, kv_heads] :
       {std::tuple(1, 6, 3), {2, 4, 4}, {2, 4, 2}, {2, 8, 4}, {3, 6, 3}, {3, 6, 6}, {4, 8, 4}}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const bool bias : {false, true}) {
        expect_equal(
            ranks, {.options = {.hidden = 24, .heads = heads, .kv_heads = kv_heads, .bias = bias, .output_bias = bias},
                    .sequence_parallel = sequence_parallel});
      }
    }
  }
}

TEST(TensorAttentionTest, RanksShareAHeadOfKeysAndValues) {
  for (const auto& [ranks, heads, kv_heads] : {std::tuple(2, 4, 1), {3, 6, 1}, {4, 8, 1}, {4, 8, 2}, {4, 4, 2}}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const bool bias : {false, true}) {
        expect_equal(ranks, {.options = {.hidden = 24,
                                         .heads = heads,
                                         .kv_heads = kv_heads,
                                         .head_size = 12,
                                         .bias = bias,
                                         .output_bias = bias},
                             .sequence_parallel = sequence_parallel});
      }
    }
  }
}

TEST(TensorAttentionTest, OverGloo) {
  for (const bool sequence_parallel : {false, true}) {
    for (const int64_t kv_heads : {1, 3}) {
      expect_equal(
          3,
          {.options =
               {.hidden = 12, .heads = 6, .kv_heads = kv_heads, .head_size = 6, .bias = true, .output_bias = true},
           .sequence_parallel = sequence_parallel},
          "gloo");
    }
  }
}

// In float the kernels of fused/ compute it where the processor has them.
TEST(TensorAttentionTest, InFloat) {
  for (const int ranks : {1, 2, 4}) {
    expect_equal(ranks, {.options = {.hidden = 16, .heads = 8, .kv_heads = 2, .bias = true, .output_bias = true},
                         .sequence_parallel = true,
                         .type = at::kFloat});
    expect_equal(ranks, {.options = {.hidden = 16, .heads = 4, .kv_heads = 4}, .type = at::kFloat});
  }
}

TEST(TensorAttentionTest, AllTokensSeeAllButThePadding) {
  for (const int ranks : {1, 2}) {
    for (const bool sequence_parallel : {false, true}) {
      expect_equal(ranks, {.options = {.hidden = 8, .heads = 4, .kv_heads = 2, .causal = false},
                           .sequence_parallel = sequence_parallel});
      expect_equal(ranks, {.options = {.hidden = 8, .heads = 4, .kv_heads = 1, .head_size = 4, .causal = false},
                           .sequence_parallel = sequence_parallel,
                           .padded = true});
    }
  }
}

TEST(TensorAttentionTest, TokensSharedAmongContextRanks) {
  for (const context::Kind kind : {context::Kind::ring, context::Kind::ulysses}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const int64_t kv_heads : {1, 4}) {
        expect_equal(4, {.options = {.hidden = 16,
                                     .heads = 8,
                                     .kv_heads = kv_heads,
                                     .bias = true,
                                     .output_bias = true,
                                     .context_kind = kind},
                         .sequence_parallel = sequence_parallel,
                         .context = 2});
      }
    }
  }
}

TEST(TensorAttentionTest, BytesAreThoseOfTheFormula) {
  on_ranks(4, [](comm::World& world) {
    const comm::Group ranks = world.group();
    constexpr int64_t B = 2, T = 8, kHidden = 16, D = 8;
    for (const int64_t kv_heads : {1, 2, 4}) {
      ParallelAttention attention(
          ParallelAttentionOptions{.hidden = kHidden, .heads = 4, .kv_heads = kv_heads, .head_size = D}, Ranks{ranks});
      const at::Tensor x = torch::ones({B, T, kHidden}).set_requires_grad(true);
      const int64_t before = ranks.bytes_sent();
      const at::Tensor y = attention->forward(x);
      const int64_t between = ranks.bytes_sent();
      y.sum().backward();
      const int64_t after = ranks.bytes_sent();
      const int64_t sum = 2 * B * T * kHidden * 4 * 3 / 4; // one, for queries, keys and values together
      const int64_t heads =
          kv_heads < 4 ? 2 * B * T * kv_heads * D * 4 * 3 / 4 : 0; // keys and values of heads that ranks share
      EXPECT_EQ(between - before, sum + heads) << kv_heads;
      EXPECT_EQ(after - between, sum + heads) << kv_heads;
    }
  });
}

TEST(TensorAttentionTest, DropoutDiffersBetweenRanksAndNotOutside) {
  on_ranks(2, [](comm::World& world) {
    torch::manual_seed(1);
    ParallelAttention attention(ParallelAttentionOptions{.hidden = 8, .heads = 4, .causal = false, .dropout = 0.5},
                                Ranks{world.group()});
    // All weights of the softmax equal and all values 1: the mixed value is the share of the
    // weights that is left.
    const at::Tensor zeros = torch::zeros({1, 2, 64, 2});
    const ParallelAttentionImpl::Heads heads{zeros, zeros, torch::ones_like(zeros)};
    const at::Tensor mixed = attention->mix(heads).detach();
    EXPECT_NEAR(mixed.mean().item<double>(), 1, 0.05);
    at::Tensor sum = mixed.clone();
    world.group().all_reduce(sum).wait();
    EXPECT_FALSE(sum.allclose(2 * mixed)) << "the ranks dropped the same weights";
    at::Tensor next = torch::rand({8});
    at::Tensor all = next.clone();
    world.group().all_reduce(all).wait();
    EXPECT_TRUE(all.equal(2 * next)) << "the ranks draw other numbers afterwards";
    attention->eval();
    EXPECT_TRUE(attention->mix(heads).allclose(torch::ones({1, 64, 4})));
  });
}

TEST(TensorAttentionTest, NumbersThatDoNotDivideAreRefused) {
  on_ranks(4, [](comm::World& world) {
    const auto refused = [&](const ParallelAttentionOptions& options, const char* what) {
      EXPECT_THAT([&] { ParallelAttention(options, Ranks{world.group()}); },
                  ThrowsMessage<InputError>(HasSubstr(what)));
    };
    refused({.hidden = 12, .heads = 6}, "the 4 tensor-parallel ranks must divide the 6 heads");
    refused({.hidden = 24, .heads = 12, .kv_heads = 6},
            "the 4 tensor-parallel ranks must divide the 6 heads of keys and values, or be a multiple of them");
    refused({.hidden = 24, .heads = 8, .kv_heads = 3}, "3 heads of keys and values do not divide 8 heads of queries");
    refused({.hidden = 24, .heads = 8, .kv_heads = 1},
            "each head of keys and values belongs to 4 tensor-parallel ranks, which do not divide its 3 features");
    refused({.hidden = 10, .heads = 4}, "4 heads do not divide a hidden size of 10");
    refused({.hidden = 8}, "hidden 8, heads 0");
    refused({.hidden = 8, .heads = 4, .kv_heads = -1}, "kv_heads -1");
    refused({.hidden = 8, .heads = 4, .dropout = 1.5}, "a dropout of 1.5 is not a probability");
  });
}

} // namespace
} // namespace trireme::tensor
