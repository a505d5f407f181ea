// The axes tensor and context: closed forms of what a rank holds and sends.
#include "axes_run.h"

#include <trireme/plan/estimate/activations.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/traffic.h>

#include <gtest/gtest.h>

namespace trireme::estimate {
namespace {

constexpr int64_t kLayers = 3, kHidden = 64, kHeads = 8, kLength = 32, kVocabulary = 1000, kSamples = 2;
constexpr int64_t kStream = 4 * kSamples * kLength * kHidden; // bytes of the residual stream

models::GptOptions gpt_shape() {
  models::GptOptions options;
  options.layers = kLayers;
  options.hidden = kHidden;
  options.heads = kHeads;
  options.sequence_length = kLength;
  options.vocab_size = kVocabulary;
  return options;
}

Conditions conditions(int64_t tensor, bool sequence_parallel = false, int64_t context = 1,
                      context::Kind kind = context::Kind::ring) {
  Conditions out;
  out.samples = kSamples;
  out.tensor_ranks = tensor;
  out.sequence_parallel = sequence_parallel;
  out.context_ranks = context;
  out.context_kind = kind;
  return out;
}

Run run_of(const Conditions& c, int64_t data = 1, int zero_stage = 0) {
  Run run = gpt_run(gpt_shape(), c);
  run.data_ranks = data;
  run.zero.stage = zero_stage;
  run.accumulation = 3;
  return run;
}

int64_t along(const Run& run, const std::string& axis, int64_t stage = 0) {
  int64_t sum = 0;
  const StageTraffic traffic = traffic_of(run).at(stage);
  for (const Item& item : traffic.items) {
    sum += item.axis == axis ? item.bytes : 0;
  }
  return sum;
}

int64_t kept(const Conditions& c) {
  return gpt(gpt_shape(), c).layers.at(2).kept;
}

constexpr int64_t kStatistics = 4 * 4 * kSamples * kLength; // two numbers of a token for both norms
constexpr int64_t kSoftmax = 4 * kSamples * kLength * kHeads;

TEST(AxesTest, TensorRanksHoldTheModelTogether) {
  const int64_t whole = gpt(gpt_shape(), {}).parameters();
  const int64_t replicated =
      kLayers * 6 * kHidden + kLength * kHidden + 2 * kHidden; // norms, biases behind sums, positions
  for (const int64_t t : {2, 4, 8}) {
    EXPECT_EQ(t * (gpt(gpt_shape(), conditions(t)).parameters() - replicated) + replicated, whole) << t;
  }
  EXPECT_EQ(gpt(gpt_shape(), conditions(3)).layers.front().parameters.front().numel, 334 * kHidden)
      << "1,000 tokens over 3: the largest part";
  EXPECT_EQ(gpt(gpt_shape(), conditions(1, false, 4)).parameters(), whole) << "the context axis divides no parameters";
}

// 16 streams: 12 inside what the axis divides, 2 that column-parallel matrices take, 2 of the residual stream.
TEST(AxesTest, ActivationsFallAsKorthikantiSays) {
  EXPECT_EQ(kept(conditions(1)), 16 * kStream + kStatistics + kSoftmax);
  EXPECT_EQ(kept(conditions(4)), 4 * kStream + 12 * kStream / 4 + kStatistics + kSoftmax / 4);
  EXPECT_EQ(kept(conditions(4, true)), 16 * kStream / 4 + kStatistics / 4 + kSoftmax / 4)
      << "all is divided: what a matrix takes is gathered again";
  EXPECT_EQ(kept(conditions(1, false, 4)), kept(conditions(1)) / 4) << "every token is somewhere else";
  EXPECT_EQ(kept(conditions(2, true, 4)), kept(conditions(2, true)) / 4);
}

TEST(AxesTest, LogitsAreDividedByTheVocabulary) {
  EXPECT_EQ(gpt(gpt_shape(), conditions(4)).loss_kept,
            4 * kSamples * kLength * kVocabulary / 4 + 4 * kSamples * kLength);
  EXPECT_EQ(gpt(gpt_shape(), conditions(1, false, 2)).loss_kept, gpt(gpt_shape(), conditions(1)).loss_kept / 2);
}

TEST(AxesTest, LogitsOfALongBatchComeInChunksButNotInFp16) {
  models::GptOptions shape = gpt_shape();
  shape.vocab_size = 50304;
  Conditions many = conditions(1);
  many.samples = 16384 / kLength;
  many.type = precision::Type::bf16;
  const int64_t all = 2 * 16384 * shape.vocab_size;
  EXPECT_LT(gpt(shape, many).loss_kept, (int64_t{256} << 20) + 4 * 16384 + 4 * shape.vocab_size * shape.hidden + 1);
  many.type = precision::Type::fp16;
  many.fp16 = true;
  EXPECT_EQ(gpt(shape, many).loss_kept, all + 4 * 16384);
}

TEST(AxesTest, MemoryFallsWithTheAxes) {
  const auto states = [](const estimate::Run& run) {
    return static_cast<double>(memory_of(run).front().model_states());
  };
  const auto activations = [](const estimate::Run& run) {
    return memory_of(run).front().item(Category::activations).bytes;
  };
  const double one = states(run_of(conditions(1)));
  EXPECT_NEAR(states(run_of(conditions(4))), one / 4, 0.05 * one);
  EXPECT_EQ(states(run_of(conditions(1, false, 4))), one);
  EXPECT_NEAR(states(run_of(conditions(1, false, 4), 1, 1)), one / 2 + one / 8, 0.01 * one)
      << "states are divided over data x context";
  EXPECT_LT(activations(run_of(conditions(4))), activations(run_of(conditions(1))));
  EXPECT_LT(activations(run_of(conditions(4, true))), activations(run_of(conditions(4))));
  EXPECT_LT(activations(run_of(conditions(4, true, 2))), activations(run_of(conditions(4, true))));
}

// Two all-reduces forward and two backward of a block, one of the embedding forward, one of the head backward; two
// numbers of a token for the loss.
TEST(AxesTest, BytesOfTheTensorAxis) {
  for (const int64_t t : {2, 4}) {
    const int64_t all_reduce = 2 * (kStream * (t - 1) / t);
    const int64_t loss = 8 * kSamples * kLength * (t - 1);
    EXPECT_EQ(along(run_of(conditions(t)), "tensor"), 3 * ((4 * kLayers + 2) * all_reduce + loss)) << t;
    EXPECT_EQ(along(run_of(conditions(t, true)), "tensor"),
              3 * ((4 * kLayers + 2) * all_reduce + (2 * kLayers + 1) * all_reduce / 2 + loss))
        << t << ", as halves, and gathered again: two a block and one for the head";
  }
  EXPECT_EQ(along(run_of(conditions(1)), "tensor"), 0);
  estimate::Run again = run_of(conditions(2));
  again.recompute_interval = 1;
  EXPECT_EQ(along(again, "tensor") - along(run_of(conditions(2)), "tensor"), 3 * (2 * kLayers + 1) * kStream)
      << "forward twice";
}

// partition_activations: of the input of each recomputed layer but the first, which has tokens, a rank keeps a share,
// and gathers it once in backward.
TEST(AxesTest, SharesOfInputsAreKeptAndGathered) {
  for (const int64_t t : {2, 4}) {
    estimate::Run run = run_of(conditions(t));
    run.recompute_interval = 1;
    run.layer_list = true;
    const auto bytes = [](const estimate::Run& of) { return memory_of(of).front().item(Category::activations).bytes; };
    const int64_t whole = bytes(run);
    const int64_t traffic = along(run, "tensor");
    run.activations.shares_inputs = true;
    const int64_t inputs = std::ssize(run.model.layers) - 1; // positions, blocks, norm and head
    EXPECT_EQ(bytes(run), whole - kLayers * (kStream - kStream / t) + kStream / t)
        << t
        << ": at the last block those of all layers between it and the first, and its own beside what it is gathered "
           "to";
    EXPECT_EQ(along(run, "tensor"), traffic + 3 * inputs * (t - 1) * (kStream / t)) << t;
    EXPECT_EQ(gathered_inputs(run, 0), inputs * (t - 1) * (kStream / t));
    run.stages = 2;
    run.bounds = {0, 4, 7};
    run.in_flight = {{2}, {1}};
    EXPECT_EQ(gathered_inputs(run, 1), 2 * (t - 1) * (kStream / t))
        << "a block has what the first stage sent; norm and head";
    run.sequence_parallel = true;
    EXPECT_EQ(gathered_inputs(run, 0), 0);
  }
}

TEST(AxesTest, BytesOfTheTensorAxisByStage) {
  estimate::Run run = run_of(conditions(2));
  run.stages = 2;
  run.bounds = {0, 4, 7};
  run.in_flight = {{2}, {1}};
  const int64_t loss = 8 * kSamples * kLength;
  EXPECT_EQ(along(run, "tensor", 0), 3 * (4 * 2 + 1) * kStream) << "embedding and two blocks";
  EXPECT_EQ(along(run, "tensor", 1), 3 * ((4 + 1) * kStream + loss)) << "a block, the head and the loss";
  run.model = gpt(gpt_shape(), conditions(2, true));
  const int64_t whole_messages = along(run_of(conditions(2)), "pipe");
  EXPECT_EQ(whole_messages, 0);
  EXPECT_EQ(run.model.layers.at(3).output, kStream / 2) << "with sequence parallelism stages send their part";
}

TEST(AxesTest, BytesOfTheContextAxis) {
  for (const int64_t c : {2, 4}) {
    const int64_t x = kStream / c;                  // a rank's keys
    const int64_t tokens = 3 * 2 * 8 * (c - 1) / c; // how many count in the loss
    EXPECT_EQ(along(run_of(conditions(1, false, c)), "context"), 3 * kLayers * 6 * (c - 1) * x + tokens)
        << "ring of " << c;
    EXPECT_EQ(along(run_of(conditions(1, false, c, context::Kind::ulysses)), "context"),
              3 * kLayers * 8 * x * (c - 1) / c + tokens)
        << "Ulysses of " << c;
    EXPECT_EQ(along(run_of(conditions(2, false, c)), "context"), 3 * kLayers * 6 * (c - 1) * x / 2 + tokens)
        << "half of the heads each";
  }
}

TEST(AxesTest, GradientsAreSummedOverDataAndContext) {
  const estimate::Run run = run_of(conditions(2, false, 2), 2);
  const int64_t flat = layout_of(run, 0).numel();
  EXPECT_NEAR(static_cast<double>(along(run, "data")), 2.0 * 4 * static_cast<double>(flat) * 3 / 4, 200)
      << "four ranks, and small sums";
}

// With sequence parallelism every tensor rank has seen a part of the tokens: what is whole is summed over the tensor
// axis too.
TEST(AxesTest, SequenceParallelGradientsOfWholeParameters) {
  const estimate::Run run = run_of(conditions(2, true), 2);
  const int64_t whole = layout_of(run, 0, true).numel();
  const int64_t divided = layout_of(run, 0, false).numel();
  EXPECT_NEAR(static_cast<double>(whole), 3 * 6 * 64 + 32 * 64 + 2 * 64, 200);
  EXPECT_NEAR(static_cast<double>(along(run, "data")),
              4.0 * static_cast<double>(divided) + 2 * 4 * 0.75 * static_cast<double>(whole), 200);
  const estimate::Run alone = run_of(conditions(2, true), 1);
  EXPECT_NEAR(static_cast<double>(along(alone, "data")), 4.0 * static_cast<double>(layout_of(alone, 0, true).numel()),
              10)
      << "no replica, still two tensor ranks";
  EXPECT_EQ(along(run_of(conditions(2), 1), "data"), 0);
}

} // namespace
} // namespace trireme::estimate
