// Each tensor-parallel layer equals torch's layer in one process: outputs, gradients of the input and of every
// parameter.
#include <trireme/parallel/tensor/exchange.h>
#include <trireme/parallel/tensor/layers.h>
#include <trireme/parallel/tensor/linear.h>
#include <trireme/parallel/tensor/skip_init.h>
#include <trireme/parallel/tensor/split_mark.h>
#include <trireme/parallel/tensor/transfer.h>

#include <tests/support/run_ranks.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <initializer_list>
#include <optional>
#include <tuple>
#include <utility>

namespace trireme::tensor {
namespace {

namespace nn = torch::nn;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

void expect_layer_close(const at::Tensor& mine, const at::Tensor& expected, const char* what) {
  ASSERT_TRUE(mine.defined()) << what;
  ASSERT_EQ(mine.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(mine.allclose(expected, 1e-5, 1e-6))
      << what << ": differs by " << (mine - expected).abs().max().item<double>();
}

/// What `placements` say this rank has of `whole`; the whole where they say nothing.
at::Tensor part_of_whole(const at::Tensor& whole, const SplitModule& module, const std::string& name,
                         const at::Tensor& mine) {
  const auto placements = module.placements();
  const auto found = placements.find(name);
  return found == placements.end() ? whole : box_of(whole, found->second, mine.sizes());
}

at::Tensor input(int64_t tokens, int64_t features) {
  return torch::cos(torch::arange(2 * tokens * features).to(torch::kFloat32)).reshape({2, tokens, features});
}

constexpr int64_t kIn = 5;
constexpr int64_t kOut = 7;

/// Two layers, the first split by columns and the second by rows; widths that do not divide by the ranks.
void check_pair(comm::World& world, bool sequence_parallel, int64_t parts) {
  const int64_t tokens = 3 * world.size();
  const int64_t middle = parts * 7;
  const Ranks ranks{world.group(), sequence_parallel};
  torch::manual_seed(11);
  ColumnParallelLinear column(kIn, middle, ranks, true, parts);
  RowParallelLinear row(middle, kOut, ranks);
  torch::manual_seed(11);
  nn::Linear first(kIn, middle);
  nn::Linear second(middle, kOut);
  expect_layer_close(column->weight, part_of_whole(first->weight, *column, "weight", column->weight),
                     "first values of the column");
  expect_layer_close(column->bias, part_of_whole(first->bias, *column, "bias", column->bias),
                     "first bias of the column");
  if (parts > 1) { // the row's inputs are this rank's features of each block, which are not neighbours: compare with
                   // rows taken likewise
    const torch::NoGradGuard no_grad;
    const bucket::Placement box{
        .global_shape = {middle, kOut}, .box_offset = {part_of(middle / parts, ranks).begin, 0}, .parts = parts};
    row->weight.set_data(box_of(second->weight.t().contiguous(), box, {column->weight.size(0), kOut}).t().contiguous());
  } else {
    expect_layer_close(row->weight, part_of_whole(second->weight, *row, "weight", row->weight),
                       "first values of the row");
  }
  expect_layer_close(row->bias, second->bias, "first bias of the row");

  const at::Tensor whole = input(tokens, kIn).requires_grad_(true);
  const at::Tensor expected = second->forward(torch::tanh(first->forward(whole)));
  const at::Tensor weights = input(tokens, kOut).add(0.3);
  (expected * weights).sum().backward();

  const auto mine_of = [&](const at::Tensor& x) {
    return sequence_parallel ? x.chunk(world.size(), 1)[world.rank()] : x;
  };
  const at::Tensor x = mine_of(input(tokens, kIn)).clone().set_requires_grad(true);
  const at::Tensor y = row->forward(torch::tanh(column->forward(x)));
  expect_layer_close(y, mine_of(expected), "output");
  (y * mine_of(weights)).sum().backward();
  expect_layer_close(x.grad(), mine_of(whole.grad()), "gradient of the input");
  expect_layer_close(column->weight.grad(), part_of_whole(first->weight.grad(), *column, "weight", column->weight),
                     "gradient of the column");
  expect_layer_close(column->bias.grad(), part_of_whole(first->bias.grad(), *column, "bias", column->bias),
                     "gradient of the column's bias");
  if (parts == 1) {
    expect_layer_close(row->weight.grad(), part_of_whole(second->weight.grad(), *row, "weight", row->weight),
                       "gradient of the row");
  }
  at::Tensor bias = row->bias.grad().clone();
  if (sequence_parallel) { // each rank has the summand of its tokens
    world.group().all_reduce(bias).wait();
  }
  expect_layer_close(bias, second->bias.grad(), "gradient of the row's bias");
}

TEST(TensorLayersTest, ColumnThenRowEqualsTwoLinearLayers) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const int64_t parts : {1, 3}) {
        EXPECT_THAT(run_ranks(ranks, [&](comm::World& world) { check_pair(world, sequence_parallel, parts); }),
                    IsEmpty())
            << ranks << " ranks, sequence_parallel " << sequence_parallel << ", " << parts << " parts";
      }
    }
  }
}

/// Sequences so long that they travel in pieces, some of them smaller than others: `tokens` of a rank, in double.
void check_long(comm::World& world, int64_t samples, int64_t tokens, bool bias, bool freeze_weights) {
  constexpr int64_t kWide = 1024;
  constexpr int64_t kMiddle = 6;
  const Ranks ranks{world.group(), true};
  const int64_t all = tokens * world.size();
  torch::manual_seed(5);
  ColumnParallelLinear column(kWide, kMiddle, ranks, bias);
  RowParallelLinear row(kMiddle, kWide, ranks, bias);
  torch::manual_seed(5);
  nn::Linear first(nn::LinearOptions(kWide, kMiddle).bias(bias));
  nn::Linear second(nn::LinearOptions(kMiddle, kWide).bias(bias));
  for (nn::Module* module : std::initializer_list<nn::Module*>{column.get(), row.get(), first.get(), second.get()}) {
    module->to(torch::kFloat64);
  }
  column->weight.set_requires_grad(!freeze_weights);
  row->weight.set_requires_grad(!freeze_weights);
  const at::Tensor whole = torch::cos(torch::arange(samples * all * kWide, torch::kFloat64))
                               .view({samples, all, kWide})
                               .requires_grad_(true);
  const at::Tensor expected = second->forward(torch::tanh(first->forward(whole)));
  const at::Tensor weights =
      torch::sin(torch::arange(samples * all * kWide, torch::kFloat64)).view({samples, all, kWide});
  (expected * weights).sum().backward();

  const auto mine_of = [&](const at::Tensor& x) { return x.chunk(world.size(), 1)[world.rank()]; };
  const at::Tensor x = mine_of(whole.detach()).clone().set_requires_grad(true);
  const int64_t before = world.group().bytes_sent();
  const at::Tensor y = row->forward(torch::tanh(column->forward(x)));
  EXPECT_EQ(world.group().bytes_sent() - before, 2 * x.numel() * 8 * (world.size() - 1)); // x gathered, y scattered
  (y * mine_of(weights)).sum().backward();
  EXPECT_EQ(world.group().bytes_sent() - before, (freeze_weights ? 4 : 5) * x.numel() * 8 * (world.size() - 1));
  const auto same = [](const at::Tensor& a, const at::Tensor& b, const char* what) {
    EXPECT_TRUE(a.allclose(b, 1e-10, 1e-10)) << what << ": differs by " << (a - b).abs().max().item<double>();
  };
  same(y, mine_of(expected), "output");
  same(x.grad(), mine_of(whole.grad()), "gradient of the input");
  if (!freeze_weights) {
    same(column->weight.grad(), part_of_whole(first->weight.grad(), *column, "weight", column->weight),
         "gradient of the column");
    same(row->weight.grad(), part_of_whole(second->weight.grad(), *row, "weight", row->weight), "gradient of the row");
  }
}

TEST(TensorLayersTest, LongSequencesTravelInPieces) {
  for (const int ranks : {2, 3}) {
    const int64_t piece = piece_sizes(/*on_host=*/true).piece_bytes / (1024 * 8) / ranks; // tokens of a rank
    for (const auto& [samples, tokens] :
         {std::pair<int64_t, int64_t>{1, 2 * piece + 5}, {3, piece / 2}, {2, piece + 1}, {1, 1}}) {
      EXPECT_THAT(
          run_ranks(ranks, [&, samples = samples, tokens = tokens](
                               comm::World& world) { check_long(world, samples, tokens, samples != 3, samples == 2); }),
          IsEmpty())
          << ranks << " ranks, " << samples << " samples of " << tokens << " tokens a rank";
    }
  }
}

/// The embedding and the output layer that uses its weight; a vocabulary that does not divide by the ranks.
void check_embedding(comm::World& world, bool sequence_parallel) {
  constexpr int64_t kVocabulary = 13;
  const int64_t tokens = 2 * world.size();
  const Ranks ranks{world.group(), sequence_parallel};
  torch::manual_seed(3);
  VocabParallelEmbedding mine(kVocabulary, kIn, ranks);
  torch::manual_seed(3);
  nn::Embedding whole(kVocabulary, kIn);
  const at::Tensor numbers = (torch::arange(2 * tokens) * 5 % kVocabulary).reshape({2, tokens});
  const at::Tensor expected = whole->forward(numbers);
  const at::Tensor logits = at::linear(torch::tanh(expected), whole->weight);
  const at::Tensor weights = input(tokens, kVocabulary);
  (logits * weights).sum().backward();

  const auto mine_of = [&](const at::Tensor& x) {
    return sequence_parallel ? x.chunk(world.size(), 1)[world.rank()] : x;
  };
  const at::Tensor x = mine->forward(numbers);
  expect_layer_close(x, mine_of(expected), "embedding");
  const at::Tensor local = mine->logits(torch::tanh(x));
  const RankRange part = part_of(kVocabulary, ranks);
  expect_layer_close(local, logits.slice(2, part.begin, part.end), "logits");
  (local * weights.slice(2, part.begin, part.end)).sum().backward();
  expect_layer_close(mine->weight.grad(), whole->weight.grad().slice(0, part.begin, part.end),
                     "gradient of the weight");

  const torch::NoGradGuard no_grad;
  expect_layer_close(join_last_dim(local, kVocabulary, ranks), logits, "all logits");
}

TEST(TensorLayersTest, VocabularyEqualsAnEmbeddingAndATiedHead) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      EXPECT_THAT(run_ranks(ranks, [&](comm::World& world) { check_embedding(world, sequence_parallel); }), IsEmpty())
          << ranks << " ranks, sequence_parallel " << sequence_parallel;
    }
  }
}

TEST(TensorLayersTest, ATokenOutsideOfTheVocabularyIsAnErrorOnEveryRank) {
  on_ranks(2, [](comm::World& world) {
    VocabParallelEmbedding embedding(6, 4, Ranks{world.group()});
    EXPECT_ANY_THROW(embedding->forward(torch::tensor({{1, 6}})));
    EXPECT_ANY_THROW(embedding->forward(torch::tensor({{1, -1}})));
  });
}

// 256 + 1 + 1 is 258 in bf16 where it is rounded once; rounded after the product too it stays 256.
// On a device a pass of its own would also read and write the whole result again.
TEST(TensorLayersTest, TheProductAddsTheBiasOfALayerOnOneRank) {
  const torch::NoGradGuard no_grad;
  ColumnParallelLinear column(2, 3, Ranks());
  RowParallelLinear row(2, 3, Ranks());
  for (nn::LinearImpl* layer : std::initializer_list<nn::LinearImpl*>{column.get(), row.get()}) {
    layer->weight.fill_(1);
    layer->bias.fill_(1);
    layer->to(torch::kBFloat16);
  }
  const at::Tensor x = torch::tensor({256.0, 1.0}).to(torch::kBFloat16).expand({2, 4, 2}).contiguous();
  EXPECT_TRUE(column->forward(x).eq(258).all().item<bool>()) << column->forward(x);
  EXPECT_TRUE(row->forward(x).eq(258).all().item<bool>()) << row->forward(x);
}

TEST(TensorLayersTest, LayersThatAreTooNarrowAreRefused) {
  on_ranks(3, [](comm::World& world) {
    const Ranks ranks{world.group()};
    const auto narrow = [](const char* what) {
      return ThrowsMessage<InputError>(
          HasSubstr(concat("a layer has 2 ", what, ", fewer than the 3 tensor-parallel ranks")));
    };
    EXPECT_THAT([&] { ColumnParallelLinear(5, 2, ranks); }, narrow("outputs"));
    EXPECT_THAT([&] { ColumnParallelLinear(5, 6, ranks, true, 3); }, narrow("outputs"));
    EXPECT_THAT([&] { RowParallelLinear(2, 5, ranks); }, narrow("inputs"));
    EXPECT_THAT([&] { VocabParallelEmbedding(2, 5, ranks); }, narrow("rows"));
    EXPECT_THAT([&] { ColumnParallelLinear(5, 8, ranks, true, 3); },
                ThrowsMessage<InputError>(HasSubstr("8 outputs cannot have 3 equal blocks")));
  });
}

// The layers are those of always, but for their values: of several ranks and of one.
TEST(TensorLayersTest, SkipInitLeavesOutTheValues) {
  on_ranks(2, [](comm::World& world) {
    for (const Ranks& ranks : {Ranks(), Ranks{world.group()}}) {
      const auto layers = [&] {
        return std::tuple(ColumnParallelLinear(kIn, 6, ranks, true, 3), RowParallelLinear(kIn, kOut, ranks, false),
                          VocabParallelEmbedding(9, 4, ranks));
      };
      torch::manual_seed(3);
      auto [column, row, words] = layers();
      const at::Tensor next_number = torch::rand({1});
      std::optional<SkipInit> skips(std::in_place, true);
      auto [empty_column, empty_row, empty_words] = layers();
      skips.reset();
      EXPECT_FALSE(SkipInit::is_on());
      const auto give = [](torch::nn::Module& to, const torch::nn::Module& from) {
        const torch::NoGradGuard no_grad;
        ASSERT_EQ(to.named_parameters().keys(), from.named_parameters().keys());
        for (auto& item : to.named_parameters()) {
          const at::Tensor values = from.named_parameters()[item.key()];
          EXPECT_TRUE(item.value().requires_grad());
          ASSERT_EQ(item.value().sizes(), values.sizes()) << item.key();
          item.value().copy_(values);
        }
      };
      give(*empty_column, *column);
      give(*empty_row, *row);
      give(*empty_words, *words);
      EXPECT_EQ(empty_column->options.out_features(), column->options.out_features());
      EXPECT_EQ(empty_row->options.in_features(), row->options.in_features());
      EXPECT_EQ(empty_words->options.num_embeddings(), words->options.num_embeddings());
      const at::Tensor tokens = torch::tensor({{8, 0, 3}});
      const at::Tensor x = input(4, kIn);
      const RankRange own = part_of(kIn, ranks);
      const at::Tensor part = x.slice(2, own.begin, own.end);
      EXPECT_TRUE(empty_column->forward(x).equal(column->forward(x)));
      EXPECT_TRUE(empty_row->forward(part).equal(row->forward(part)));
      EXPECT_TRUE(empty_words->forward(tokens).equal(words->forward(tokens)));
      empty_column->forward(x).sum().backward();
      EXPECT_EQ(empty_column->weight.grad().sizes(), empty_column->weight.sizes());
      torch::manual_seed(3); // afterwards layers have the values that they had
      auto [again, again_row, again_words] = layers();
      EXPECT_TRUE(again->weight.equal(column->weight));
      EXPECT_TRUE(again_words->weight.equal(words->weight));
      EXPECT_TRUE(torch::rand({1}).equal(next_number));
    }
  });
}

// A layer of this library in a model that engine.tensor_parallel splits by rules: every operator on the weight is ours.
TEST(ColumnLinearTest, AMarkedWeightTakesTheOperatorsOfItsMark) {
  constexpr int64_t kOutputs = 8192; // more than fused::linear() divides
  at::Tensor weight = torch::randn({kOutputs, 8});
  const at::Tensor x = torch::randn({40, 8});
  const at::Tensor expected = at::linear(x, weight);
  const at::Tensor expected_gradient = torch::ones({40, kOutputs}).t().mm(x);
  weight.requires_grad_();
  set_mark(weight, {std::make_shared<SplitParameter>(SplitParameter{
                        .name = "lm_head.weight", .ranks = {}, .whole = {2 * kOutputs, 8}, .part = {0, kOutputs}}),
                    Form::same});
  const at::Tensor y = column_linear(x, weight, {}, {});
  EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-5));
  y.sum().backward();
  EXPECT_TRUE(at::allclose(weight.grad(), expected_gradient, 1e-4, 1e-4));
}

} // namespace
} // namespace trireme::tensor
