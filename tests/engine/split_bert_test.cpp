// A BERT whose layers are split among ranks, with masks and gaps to guess: losses and gradient norms of one process, of
// plain libtorch and of PyTorch in Python.
#include "split_run.h"

#include <trireme/checkpoint/safetensors.h>
#include <trireme/models/bert_layers.h>

#include <tests/support/command.h>
#include <tests/support/folders.h>
#include <tests/support/gaps.h>

#include <unistd.h>
#include <filesystem>
#include <sstream>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using models::BertOptions;
using pipeline::PipelineModule;
using Kind = pipeline::ScheduleKind;
using testing::IsEmpty;

constexpr int64_t kLength = 12;

BertOptions small_bert() {
  BertOptions options;
  options.layers = 3;
  options.hidden = 16;
  options.heads = 4;
  options.sequence_length = kLength;
  options.vocab_size = 31;
  return options;
}

Curve of_one_process() {
  PipelineModule model(models::bert_layers(small_bert()), models::masked_lm_loss);
  model.build();
  const auto loss = [&](const data::Batch& batch) {
    return models::masked_lm_loss(model.forward(batch.inputs), batch.targets);
  };
  return plain_curve(model, loss, test::Gaps(kLength), kSplitBatch, kSplitSteps, /*clipping=*/1.0,
                     torch::optim::AdamWOptions(0.01));
}

void build(const SplitLayout& layout, InitializeOptions& options) {
  const models::ModelRanks ranks = layout.model_ranks(*options.mesh);
  options.pipeline = std::make_shared<PipelineModule>(
      models::bert_layers(small_bert(), ranks), models::bert_loss(small_bert(), ranks), layout.pipeline_options());
  auto& adam = std::get<optim::AdamOptions>(options.config.optimizer.emplace().rule);
  adam.lr = 0.01;
  adam.weight_decay = 0.01; // torch's default
  options.training_data = std::make_shared<test::Gaps>(kLength);
}

void expect_curve_of_one_process(const SplitLayout& layout) {
  EXPECT_THAT(test::run_ranks(layout.ranks(),
                              [&](comm::World& world) {
                                const Curve expected = of_one_process();
                                SplitRun run(world, layout, build);
                                expect_curve(run, expected);
                              }),
              IsEmpty())
      << layout.describe();
}

TEST(SplitBertTest, TensorRanks) {
  expect_curve_of_one_process({.tensor = 2});
  expect_curve_of_one_process({.tensor = 4, .sequence_parallel = true});
}

TEST(SplitBertTest, TokensOfEachSample) {
  expect_curve_of_one_process({.context = 2});
  expect_curve_of_one_process({.context = 3});
  expect_curve_of_one_process({.context = 4, .context_kind = context::Kind::ulysses});
  expect_curve_of_one_process({.data = 2, .context = 2, .zero_stage = 2});
  expect_curve_of_one_process({.pipe = 2, .context = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2});
}

TEST(SplitBertTest, WithReplicasPipelinesAndZero) {
  expect_curve_of_one_process({.data = 2, .tensor = 2, .zero_stage = 2});
  expect_curve_of_one_process({.data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3});
}

TEST(SplitBertTest, Pipelines) {
  expect_curve_of_one_process({.pipe = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2});
  expect_curve_of_one_process(
      {.pipe = 2, .data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 1, .accumulation = 2});
  expect_curve_of_one_process({.pipe = 3, .tensor = 2, .accumulation = 4, .schedule = Kind::gpipe});
  expect_curve_of_one_process({.pipe = 2,
                               .tensor = 2,
                               .sequence_parallel = true,
                               .accumulation = 4,
                               .schedule = Kind::interleaved,
                               .chunks = 2});
  expect_curve_of_one_process({.pipe = 2, .context = 2, .accumulation = 4, .schedule = Kind::interleaved, .chunks = 2});
  expect_curve_of_one_process({.pipe = 2, .tensor = 2, .accumulation = 4, .schedule = Kind::zero_bubble});
  expect_curve_of_one_process({.pipe = 2,
                               .context = 2,
                               .tensor = 2,
                               .sequence_parallel = true,
                               .accumulation = 4,
                               .schedule = Kind::zero_bubble,
                               .context_kind = context::Kind::ulysses});
  expect_curve_of_one_process({.pipe = 2, .data = 2, .tensor = 2, .zero_stage = 3, .accumulation = 2});
  expect_curve_of_one_process({.pipe = 2,
                               .data = 2,
                               .tensor = 2,
                               .sequence_parallel = true,
                               .zero_stage = 3,
                               .accumulation = 4,
                               .schedule = Kind::zero_bubble});
  expect_curve_of_one_process({.pipe = 2,
                               .data = 2,
                               .context = 2,
                               .zero_stage = 2,
                               .accumulation = 4,
                               .schedule = Kind::interleaved,
                               .chunks = 2});
}

// What reference_bert.py trains: the same initial values, and the batches of all steps.
void write_for_python(const fs::path& folder) {
  PipelineModule model(models::bert_layers(small_bert()), models::masked_lm_loss);
  model.build();
  std::vector<checkpoint::NamedTensor> weights;
  for (const auto& item : model.named_parameters()) {
    weights.push_back({item.key(), item.value().detach()});
  }
  checkpoint::write_safetensors(folder / "model.safetensors", weights);
  const test::Gaps gaps(kLength);
  std::vector<at::Tensor> tokens, masks, targets;
  for (int64_t step = 0; step < kSplitSteps; ++step) {
    const data::Batch batch = test::batch_of_step(gaps, step, kSplitBatch);
    tokens.push_back(batch.inputs.at(0));
    masks.push_back(batch.inputs.at(1));
    targets.push_back(batch.targets.at(0));
  }
  checkpoint::write_safetensors(
      folder / "batches.safetensors",
      {{"tokens", torch::stack(tokens)}, {"mask", torch::stack(masks)}, {"targets", torch::stack(targets)}});
}

TEST(SplitBertTest, EqualsPythonPytorchForTwentySteps) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_split_bert_", ::getpid());
  fs::create_directories(folder);
  ASSERT_THAT(test::run_ranks(1, [&](comm::World&) { write_for_python(folder); }),
              IsEmpty()); // a process that forks later has not used torch
  const auto [status, output] = test::run_command(
      concat("'" + test::python() + "' '" + test::source_dir() + "/tests/models/reference_bert.py' curve '",
             folder.string(), "' ", small_bert().heads));
  fs::remove_all(folder);
  ASSERT_EQ(status, 0) << output;
  Curve python;
  std::istringstream lines(output);
  for (double loss, norm; lines >> loss >> norm;) {
    python.losses.push_back(loss);
    python.norms.push_back(norm);
  }
  ASSERT_EQ(python.losses.size(), kSplitSteps) << output;
  for (const SplitLayout& layout : {SplitLayout{.tensor = 4, .sequence_parallel = true},
                                    SplitLayout{.pipe = 2, .context = 2, .tensor = 2, .accumulation = 2},
                                    SplitLayout{.pipe = 2,
                                                .data = 2,
                                                .tensor = 2,
                                                .sequence_parallel = true,
                                                .zero_stage = 3,
                                                .accumulation = 4,
                                                .schedule = Kind::zero_bubble}}) {
    EXPECT_THAT(test::run_ranks(layout.ranks(),
                                [&](comm::World& world) {
                                  SplitRun run(world, layout, build);
                                  expect_curve(run, python);
                                }),
                IsEmpty())
        << layout.describe();
  }
}

} // namespace
} // namespace trireme::engine
