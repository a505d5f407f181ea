// Formulas for runs with frozen parameters against what ranks allocate.
#include "allocated.h"

#include <trireme/comm/host_memory.h>
#include <trireme/config/freeze.h>
#include <trireme/engine/initialize.h>
#include <trireme/models/gpt.h>
#include <trireme/models/gpt_layers.h>
#include <trireme/parallel/pipeline/frozen.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/run_estimate.h>
#include <trireme/shards/zero/init.h>

#include <tests/support/run_ranks.h>
#include <tests/support/sanitized.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

#include <optional>

namespace trireme::estimate {
namespace {

constexpr int64_t kLength = 32;

class Sequences : public data::Dataset {
 public:
  int64_t size() const override { return 64; }
  data::Batch get(std::span<const int64_t> indices) const override {
    const at::Tensor tokens = torch::ones({std::ssize(indices), kLength}, torch::kInt64);
    return {{tokens}, {tokens}, std::ssize(indices)};
  }
  std::string describe() const override { return "sequences"; }
};

// 1.2 million parameters and 100 kB of activations a block.
config::RunConfig run_config(int zero_stage, bool layer_list) {
  const std::string text =
      concat(R"({"model": {"type": "gpt", "layers": 6, "hidden": 128, "heads": 4, "sequence_length": )", kLength,
             R"j(, "vocab_size": 64},
    "data": {"type": "tokens", "train": ["t.bin"]},
    "training": {"steps": 3, "freeze": "^(?!transformer.(h.5|ln_f))"},
    "engine": {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
               "pipeline": {"seed_layers": )j",
             layer_list ? "true" : "false", R"(}, "zero_optimization": {"stage": )", zero_stage,
             R"(, "stage3_param_persistence_threshold": 200, "reduce_bucket_size": 50000}}})");
  return config::read_run(JsonNode::parse(text, "run.json"), "/");
}

engine::Initialized start_frozen(comm::World& world, const config::RunConfig& run) {
  engine::InitializeOptions options;
  options.config = run.engine;
  options.training_data = std::make_shared<Sequences>();
  const auto is_frozen = [&](const std::string& name) -> bool { return frozen_among(run.training.freeze, {name})[0]; };
  if (run.builds_layers()) {
    options.pipeline = std::make_shared<pipeline::PipelineModule>(
        pipeline::frozen(models::gpt_layers(run.model.gpt), is_frozen), models::token_loss, run.pipeline);
  } else {
    std::optional<zero::Init> init;
    if (run.engine.zero.stage == 3) {
      init.emplace(world.group(), run.engine.precision.compute, at::kCPU);
    }
    models::Gpt gpt_module(run.model.gpt);
    for (const auto& item : gpt_module->named_parameters()) {
      item.value().set_requires_grad(!is_frozen(item.key()));
    }
    options.model = gpt_module.ptr();
    options.loss = [gpt_module](const data::Batch& batch) mutable {
      return gpt_module->loss(batch.input(), batch.target());
    };
  }
  return engine::initialize(world, options);
}

class FrozenMemory : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(FrozenMemory, IsWhatRanksAllocate) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer's allocator is its own";
  }
  const auto [zero_stage, layer_list] = GetParam();
  const config::RunConfig run = run_config(zero_stage, layer_list);
  const StageMemory memory = memory_of(plan::describe(run, 2).run).front();
  test::on_ranks(2, [&](comm::World& world) {
    at::set_num_threads(1);
    const Allocated allocated;
    const int64_t shared_before = comm::own_shared_bytes();
    const engine::Initialized made = start_frozen(world, run);
    made.engine->train_batch();
    made.engine->train_batch();
    world.group().barrier("trained").wait();
    const int64_t shared = comm::own_shared_bytes() - shared_before;
    const int64_t seen = allocated.now() + shared;
    allocated.restart();
    made.engine->train_batch();
    const int64_t most = allocated.most() + shared;
    // Batches and losses; and what the shm backend keeps of the first broadcast of the largest frozen parameter, which
    // lies in no flat buffer.
    constexpr int64_t kSmall = 150'000 + 2 * 4 * 128 * 512;
    // At stage 3 the unit that was gathered last, and the one that was reduced last, are freed by the next ones.
    const int64_t of_last_units = zero_stage == 3 ? 2 * 4 * (12 * 128 + 13) * 128 : 0;
    const int64_t buffers = memory.item(Category::communication_buffers).bytes + of_last_units;
    const int64_t activations = memory.item(Category::activations).bytes;
    EXPECT_GT(seen, memory.model_states() - kSmall);
    EXPECT_LT(seen, memory.model_states() + buffers + kSmall);
    EXPECT_LT(most, memory.model_states() + buffers + activations + kSmall);
    EXPECT_GT(most, memory.model_states() + activations / 2 - kSmall);
    std::printf("ZeRO %d: states %ld, allocated %ld, with buffers %ld; peak %ld, estimated %ld\n", zero_stage,
                static_cast<long>(memory.model_states()), static_cast<long>(seen),
                static_cast<long>(memory.model_states() + buffers), static_cast<long>(most),
                static_cast<long>(memory.model_states() + buffers + activations));
    std::fflush(stdout);
  });
  EXPECT_LT(memory.model_states(), 4 * (memory.flat + memory.frozen) + 3 * 4 * memory.flat + 1);
}

INSTANTIATE_TEST_SUITE_P(All, FrozenMemory, testing::Combine(testing::Values(0, 2, 3), testing::Bool()),
                         [](const auto& info) {
                           return concat("stage", std::get<0>(info.param), std::get<1>(info.param) ? "_layers" : "");
                         });

} // namespace
} // namespace trireme::estimate
