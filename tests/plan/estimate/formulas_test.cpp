#include <trireme/fused/logit_chunks.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/moves.h>
#include <trireme/plan/estimate/traffic.h>
#include <trireme/plan/estimate/verdict.h>

#include <gmock/gmock.h>

namespace trireme::estimate {
namespace {

using testing::HasSubstr;

models::GptOptions shape(bool tied = true) {
  return {
      .layers = 12, .hidden = 768, .heads = 12, .sequence_length = 1024, .vocab_size = 50257, .tie_embeddings = tied};
}

Run plain(int64_t ranks = 1, int zero_stage = 0) {
  Run run;
  run.model = gpt(shape(), {});
  run.bounds = {0, std::ssize(run.model.layers)};
  run.data_ranks = ranks;
  run.zero.stage = zero_stage;
  return run;
}

TEST(FormulasTest, TheTextbooksNumbers) {
  EXPECT_EQ(textbook_model_bytes(12, 768), 4LL * 12 * 768 * (13 + 12 * 768));
  EXPECT_EQ(textbook_model_bytes(12, 768) / 4 + (50257 + 1024 + 2) * 768, gpt(shape(), {}).parameters())
      << "embeddings and the last norm";
  EXPECT_EQ(textbook_activation_bytes(12, 4, 1024, 768, 12), 12LL * 4 * 1024 * 768 * (67 + 9 * 12 * 1024 / 768));
}

TEST(FormulasTest, Gpt2IsAsLargeAsEverybodySays) {
  EXPECT_EQ(gpt(shape(), {}).parameters(), 124'439'808);
  EXPECT_EQ(gpt(shape(false), {}).parameters(), 124'439'808 + 50257 * 768);
}

TEST(FormulasTest, StatesFollowTheStage) {
  const double P = 124'439'808;
  const auto states = [](const estimate::Run& run) {
    return static_cast<double>(memory_of(run).front().model_states());
  };
  const auto near = [](double bytes) { return testing::DoubleNear(bytes, 2e-3 * bytes); };
  EXPECT_THAT(states(plain()), near(16 * P));
  EXPECT_THAT(states(plain(4, 0)), near(16 * P));
  EXPECT_THAT(states(plain(4, 1)), near((8 + 2) * P));
  EXPECT_THAT(states(plain(4, 2)), near((4 + 3) * P));
  EXPECT_THAT(states(plain(4, 3)), near(4 * P));
  estimate::Run bf16 = plain(4, 1);
  bf16.precision.compute = Type::bf16;
  EXPECT_THAT(states(bf16), near(4 * P + 12 * P / 4)) << "2 + 2, and 4 + 8 shared";
  bf16.accumulation = 2;
  EXPECT_THAT(states(bf16), near(6 * P + 12 * P / 4)) << "gradients are added up in fp32";
  estimate::Run bytes = plain();
  bytes.optimizer.state_type = optim::StateType::int8;
  EXPECT_THAT(states(bytes), near((4 + 4 + 2) * P + 2 * 4 * P / 256));
  estimate::Run sgd = plain();
  sgd.optimizer.rule = optim::SgdOptions{};
  EXPECT_THAT(states(sgd), near(8 * P));
}

TEST(FormulasTest, BaselineAndDataAreTheHosts) {
  estimate::Run run = plain();
  run.data_bytes = 5000;
  const StageMemory memory = memory_of(run).front();
  EXPECT_EQ(memory.peak_on_device(), memory.peak() - baseline_bytes() - 5000);
  EXPECT_GT(memory.peak_on_device(), memory.model_states());
}

TEST(FormulasTest, StageThreeKeepsSmallParametersWhole) {
  estimate::Run run = plain(4, 3);
  run.zero.param_persistence_threshold = 0;
  const auto layout = layout_of(run, 0);
  EXPECT_EQ(whole_elements(layout), (2 * 768 + 63) / 64 * 64) << "the last norm belongs to no unit";
  run.zero.param_persistence_threshold = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(unit_elements(layout_of(run, 0)), 0);
  run.zero.model_persistence_threshold = 0;
  EXPECT_GT(unit_elements(layout_of(run, 0)), 124'000'000);
}

TEST(FormulasTest, TrafficFollowsTheStage) {
  const double P = 124'439'808;
  const auto sent = [](const estimate::Run& run) { return static_cast<double>(traffic_of(run).front().bytes()); };
  const auto near = [](double bytes) { return testing::DoubleNear(bytes, 3e-3 * bytes); };
  EXPECT_EQ(sent(plain()), 0);
  for (const int stage : {0, 1, 2}) {
    EXPECT_THAT(sent(plain(4, stage)), near(2 * 4 * P * 3 / 4)) << "stage " << stage;
  }
  estimate::Run twice = plain(4, 2);
  twice.accumulation = 2;
  EXPECT_THAT(sent(twice), near(3 * 4 * P * 3 / 4)) << "every micro-batch is reduced";
  estimate::Run three = plain(4, 3);
  three.zero.param_persistence_threshold = 0;
  three.zero.prefetch_elements = 0;
  EXPECT_THAT(sent(three), near(3 * 4 * P * 3 / 4));
  estimate::Run half = plain(4, 0);
  half.precision.compute = Type::bf16;
  EXPECT_THAT(sent(half), near(2 * 2 * P * 3 / 4));
}

TEST(FormulasTest, PipelinesSendEveryMicroBatchBothWays) {
  estimate::Run run = plain();
  run.model = gpt(shape(), {/*samples=*/2, Type::fp32, false, true});
  run.layer_list = true;
  run.stages = 3;
  run.bounds = {0, 6, 10, 16};
  run.in_flight = {{3}, {2}, {1}};
  run.accumulation = 8;
  const auto traffic = traffic_of(run);
  const int64_t message = 64 + 4 * 2 * 1024 * 768;
  const int64_t sums = 2 * (40 * 2 / 3);
  EXPECT_EQ(traffic[0].bytes(), 8 * message + sums);
  EXPECT_EQ(traffic[1].bytes(), 16 * message + sums);
  EXPECT_EQ(traffic[2].bytes(), 8 * message + sums);
  EXPECT_EQ(traffic[0].tied_bytes, 4 * 50257 * 768);
  EXPECT_EQ(traffic[1].tied_bytes, 0);
  const auto memory = memory_of(run);
  EXPECT_GT(memory[0].item(Category::activations).bytes, memory[1].item(Category::activations).bytes);
}

TEST(FormulasTest, RecomputationKeepsTheInputs) {
  estimate::Run run = plain();
  run.model = gpt(shape(), {/*samples=*/2, Type::fp32, false, true});
  run.layer_list = true;
  const int64_t all = memory_of(run).front().item(Category::activations).bytes;
  run.recompute_interval = 1;
  const int64_t few = memory_of(run).front().item(Category::activations).bytes;
  const int64_t S = 4 * 2 * 1024 * 768;
  const int64_t row = 4 * 50257;
  const int64_t logits = fused::logit_chunk_rows(2 * 1024, row) * row; // of a chunk
  ASSERT_LT(logits, 2 * 1024 * row);
  EXPECT_GT(all, 12 * 16 * S + logits);
  EXPECT_LT(all, 13 * 16 * S + logits + 4 * 50257 * 768 * 2);
  EXPECT_LT(few, logits + (12 + 16 + 12) * S + 4 * 50257 * 768 * 2);
}

// A block keeps 16 units and its input is one of them; the vocabulary is small, so that the loss is not what needs
// most.
TEST(FormulasTest, ActivationsByTheirWays) {
  using activations::Way;
  estimate::Run run = plain();
  models::GptOptions few_words = shape();
  few_words.vocab_size = 256;
  run.model = gpt(few_words, {/*samples=*/2, Type::fp32, false, false});
  const auto bytes = [&] { return memory_of(run).front().item(Category::activations).bytes; };
  const int64_t keep = bytes();
  int64_t block = 0;
  int64_t input = 0;
  for (const Layer& layer : run.model.layers) {
    if (layer.type == "GptBlock") {
      block = layer.kept;
      input = layer.input;
    }
  }
  ASSERT_GT(block, 15 * input);
  run.activations.policy = Way::recompute;
  const int64_t recompute = bytes();
  EXPECT_GT(recompute, keep - 12 * (block - input));
  EXPECT_LE(recompute, keep - 12 * (block - input) + block);
  run.activations.policy = Way::recompute_host;
  EXPECT_EQ(bytes(), recompute) << "on the CPU";
  run.activations.policy = Way::host;
  EXPECT_EQ(bytes(), keep) << "on the CPU";
  run.activations.policy = Way::nvme;
  run.activations.nvme_path = "/nvme";
  EXPECT_GT(bytes(), keep - 12 * block + 2 * block);
  EXPECT_LT(bytes(), keep - 12 * block + 3 * block) << "two buffers, and what a forward still uses of what leaves";
  run.activations = {.choices = std::vector<Way>(12, Way::keep), .nvme_path = "/nvme"};
  run.activations.choices.front() = Way::nvme;
  EXPECT_EQ(bytes(), keep) << "its buffer is as large";
  for (size_t i = 0; i < 12; i += 2) {
    run.activations.choices[i] = Way::nvme;
  }
  EXPECT_EQ(bytes(), keep - 6 * block + block) << "none comes ahead beside another";
  run.activations = {.choices = std::vector<Way>(12, Way::keep)};
  EXPECT_EQ(bytes(), keep);
  run.activations.choices.back() = Way::recompute;
  EXPECT_LE(bytes(), keep + input);
  run.activations.choices.assign(12, Way::recompute);
  run.activations.choices.back() = Way::keep;
  EXPECT_LE(bytes(), recompute + input) << "when another is computed again, the last one has gone";
  run.activations.choices.back() = Way::recompute;
  run.activations.choices.front() = Way::keep;
  EXPECT_EQ(bytes(), recompute + block - input) << "the first is there to the end";
  run.activations = {.automatic = true, .memory_budget = 4 * block};
  EXPECT_EQ(bytes(), keep - 8 * block);
  run.activations.memory_budget = 20 * block;
  EXPECT_EQ(bytes(), keep);

  // On a device what is on the host is elsewhere. What moves is there once more: what has not left, or comes ahead.
  run.on_device = true;
  EXPECT_EQ(bytes(), keep) << "auto within its budget";
  run.activations.memory_budget = 4 * block;
  EXPECT_EQ(bytes(), keep - 8 * block) << "wherever the rest is";
  run.activations = {.policy = Way::host};
  EXPECT_GT(bytes(), keep - 12 * block + block);
  EXPECT_LE(bytes(), keep - 12 * block + 2 * block);
  run.activations.policy = Way::recompute_host;
  EXPECT_GT(bytes(), recompute - 12 * input);
  EXPECT_EQ(bytes(), recompute - 11 * input + input) << "of those before the last block none is there; one comes ahead";
  run.activations = {.policy = Way::recompute, .inputs_to_host = true};
  EXPECT_EQ(bytes(), recompute - 10 * input) << "cpu_checkpointing";
  run.activations = {.policy = Way::nvme, .nvme_path = "/nvme"};
  EXPECT_LE(bytes(), keep - 12 * block + 2 * block);
}

// With "auto" recomputed layers may be kept again, as far as the budget goes.
TEST(FormulasTest, WhatIsChosenIsWithinTheBudgetWhateverTheModelDoesByItself) {
  estimate::Run run = plain();
  run.model = gpt(shape(), {/*samples=*/2, Type::fp32, false, true});
  run.layer_list = true;
  run.activations = {.automatic = true, .memory_budget = std::numeric_limits<int64_t>::max()};
  const auto bytes = [&] { return memory_of(run).front().item(Category::activations).bytes; };
  const int64_t all = bytes();
  run.recompute_interval = 1;
  EXPECT_GE(bytes(), all);
  const int64_t block = run.model.layers[2].kept;
  const int64_t parts = [&] {
    int64_t sum = 0;
    for (const Layer& layer : run.model.layers) {
      sum += layer.kept;
    }
    return sum;
  }();
  const int64_t unlimited = bytes();
  run.activations.memory_budget = parts - 3 * block;
  EXPECT_EQ(bytes(), unlimited - 3 * block);
}

TEST(FormulasTest, ARunIsRefusedOnlyBeyondTheMargin) {
  const Need need = need_of(memory_of(plain(2)), 2);
  EXPECT_EQ(need.least_of_all, 2 * need.least_of_a_rank);
  EXPECT_GT(need.peak_of_a_rank, need.least_of_a_rank + baseline_bytes() - 1);
  MemoryAtHand memory;
  EXPECT_EQ(why_too_large(need, memory, 2), "");
  EXPECT_TRUE(fits(need, memory));
  memory.bytes = static_cast<int64_t>(static_cast<double>(need.least_of_all) / 1.05);
  memory.source = "this machine has free";
  EXPECT_EQ(why_too_large(need, memory, 2), "") << "within the margin";
  EXPECT_FALSE(fits(need, memory));
  memory.bytes = need.least_of_all / 2;
  EXPECT_THAT(why_too_large(need, memory, 2), HasSubstr("of 2 ranks need"));
  EXPECT_THAT(why_too_large(need, memory, 2), HasSubstr("this machine has free"));
  memory = {};
  memory.process_bytes = need.least_of_a_rank / 2;
  EXPECT_THAT(why_too_large(need, memory, 2), HasSubstr("ulimit -v"));
}

// With states on the host the GPU has the parameters once, from the start on.
TEST(FormulasTest, ABuildOnTheHostNeedsNoMoreOfAGpuThanTraining) {
  for (const int stage : {0, 1, 2}) {
    estimate::Run run = plain(2, stage);
    run.on_device = true;
    run.precision.compute = Type::bf16;
    const auto start = [&] {
      const StageMemory memory = memory_of(run).front();
      return memory.start - memory.always_on_host();
    };
    const int64_t whole = start();
    run.offload.optimizer.place = offload::Place::host;
    const StageMemory memory = memory_of(run).front();
    EXPECT_EQ(start(), whole - memory.item(Category::parameters).bytes) << stage;
    EXPECT_LE(memory.start, memory.training()) << stage;
    EXPECT_EQ(moves_of(run).front().host_at_start, 4 * run.model.parameters()) << "one piece";
    run.layer_list = true;
    EXPECT_EQ(moves_of(run).front().host_at_start, memory.item(Category::parameters).bytes) << stage;
  }
}

TEST(FormulasTest, ARunIsRefusedForItsGpu) {
  estimate::Run run = plain();
  run.on_device = true;
  const Need need = need_of(run);
  const StageMemory memory = memory_of(run).front();
  EXPECT_EQ(need.least_on_device, memory.model_states() + memory.item(Category::activations).bytes);
  EXPECT_GT(need.peak_on_device, memory.peak_on_device() + kDeviceLibraries);
  EXPECT_THAT(need.on_device, testing::StartsWith("optimizer states 996 MB, "));
  MemoryAtHand there;
  EXPECT_EQ(why_too_large_on_device(need, there), "") << "unknown";
  there.device_bytes = static_cast<int64_t>(static_cast<double>(need.least_on_device) / 1.05);
  EXPECT_EQ(why_too_large_on_device(need, there), "") << "within the margin";
  EXPECT_FALSE(fits(need, there));
  there.device_bytes = need.least_on_device / 2;
  EXPECT_THAT(why_too_large_on_device(need, there), HasSubstr("of its GPU (optimizer states 996 MB, "));
  run.on_device = false;
  EXPECT_EQ(need_of(run).least_on_device, 0);
}

} // namespace
} // namespace trireme::estimate
