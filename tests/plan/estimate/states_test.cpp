// Formulas against the resident memory of ranks.
#include <trireme/comm/host_memory.h>
#include <trireme/engine/initialize.h>
#include <trireme/models/gpt.h>
#include <trireme/monitor/resources.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/run_estimate.h>
#include <trireme/shards/zero/init.h>

#include <tests/support/run_ranks.h>
#include <tests/support/sanitized.h>

#include <gmock/gmock.h>
#include <malloc.h>
#include <torch/utils.h>

#include <optional>

namespace trireme::estimate {
namespace {

using test::on_ranks;
using test::run_ranks;

// What this process has beside its peers' memory.
int64_t resident() {
  malloc_trim(0);
  return monitor::current_private_bytes() + comm::own_shared_bytes();
}

class OneToken : public data::Dataset {
 public:
  int64_t size() const override { return 64; }
  data::Batch get(std::span<const int64_t> indices) const override {
    const at::Tensor tokens = torch::ones({std::ssize(indices), 4}, torch::kInt64);
    return {{tokens}, {tokens}, std::ssize(indices)};
  }
  std::string describe() const override { return "one token"; }
};

engine::Initialized start(comm::World& world, const config::RunConfig& run) {
  engine::InitializeOptions options;
  options.config = run.engine;
  options.training_data = std::make_shared<OneToken>();
  options.mesh = mesh::training_mesh(world.group(), {.tensor = static_cast<int>(run.parallel.tensor)});
  const models::ModelRanks model_ranks{.tensor = {options.mesh->group(mesh::Axis::tensor), false}};
  const comm::Group data_ranks = options.mesh->group(mesh::Axis::data);
  std::optional<zero::Init> init;
  if (run.engine.zero.stage == 3 && data_ranks.size() > 1) {
    init.emplace(data_ranks, run.engine.precision.compute, at::kCPU);
  }
  models::Gpt gpt_module(run.model.gpt, model_ranks);
  init.reset();
  options.model = gpt_module.ptr();
  options.loss = [gpt_module](const data::Batch& batch) mutable {
    return gpt_module->loss(batch.input(), batch.target());
  };
  engine::Initialized made = engine::initialize(world, options);
  for (int step = 0; step < 3; ++step) {
    made.engine->train_batch();
  }
  world.group().barrier("end").wait();
  return made;
}

// 25 million parameters, hardly any activations.
config::RunConfig states_config(const std::vector<std::string>& overrides) {
  const std::string text =
      R"({"model": {"type": "gpt", "layers": 8, "hidden": 512, "heads": 8, "sequence_length": 4, "vocab_size": 64},
    "data": {"type": "tokens", "train": ["t.bin"]}, "training": {"steps": 3},
    "engine": {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}})";
  return config::read_run(JsonNode::parse(text, "run.json"), "/", overrides);
}

struct StatesCase {
  int ranks;
  int zero_stage;
  bool bf16;
  bool outer = false; // averaged parameters with an outer optimizer
  int tensor = 1;     // of the ranks
};

class ResidentMemory : public testing::TestWithParam<StatesCase> {};

TEST_P(ResidentMemory, IsWithinFivePercentOfTheFormula) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs memory of its own";
  }
  const StatesCase c = GetParam();
  std::vector<std::string> overrides = {concat("engine.zero_optimization.stage=", c.zero_stage)};
  if (c.tensor > 1) {
    overrides.emplace_back(concat("parallel.tensor=", c.tensor));
    overrides.emplace_back("model.layers=24");
  }
  if (c.bf16) {
    overrides.emplace_back("engine.bf16.enabled=true");
  }
  if (c.outer) {
    overrides.emplace_back(R"(engine.parameter_averaging={"every": 3, "outer_optimizer": "nesterov"})");
  }
  const config::RunConfig run = states_config(overrides);
  overrides.emplace_back("model.layers=1");
  const config::RunConfig small = states_config(overrides);
  const StageMemory memory = memory_of(plan::describe(run, c.ranks).run).front();
  // What stages 2 and 3 keep for buckets that come and go is the communication buffers'.
  const int64_t buffers = memory.item(Category::communication_buffers).bytes;
  on_ranks(c.ranks, [&](comm::World& world) {
    at::set_num_threads(1);
    start(world, small); // libtorch's code, kernels and work areas
    const int64_t before = resident();
    const engine::Initialized made = start(world, run);
    const auto measured = static_cast<double>(resident() - before);
    const auto states = static_cast<double>(memory.model_states());
    EXPECT_GT(measured, 0.95 * states);
    EXPECT_LT(measured, 1.05 * (states + static_cast<double>(buffers)))
        << "states " << states << ", buffers " << buffers;
    std::printf("rank %d of %d, stage %d%s: measured %.1f MB, states %.1f MB, buffers %.1f MB\n", world.rank(), c.ranks,
                c.zero_stage, c.bf16 ? ", bf16" : "", measured / 1e6, states / 1e6, static_cast<double>(buffers) / 1e6);
    std::fflush(stdout);
    world.group().barrier("measured").wait();
  });
}

INSTANTIATE_TEST_SUITE_P(All, ResidentMemory,
                         testing::Values(StatesCase{1, 0, false}, StatesCase{2, 0, false}, StatesCase{2, 1, false},
                                         StatesCase{2, 2, false}, StatesCase{2, 3, false}, StatesCase{4, 0, false},
                                         StatesCase{4, 1, false}, StatesCase{4, 2, false}, StatesCase{4, 3, false},
                                         StatesCase{2, 1, true}, StatesCase{2, 3, true}, StatesCase{2, 0, false, true},
                                         StatesCase{2, 0, true, true}, StatesCase{2, 0, false, false, 2},
                                         StatesCase{4, 0, false, false, 4}, StatesCase{4, 1, false, false, 2}),
                         [](const auto& info) {
                           return concat("stage", info.param.zero_stage, "_", info.param.ranks, "ranks",
                                         info.param.bf16 ? "_bf16" : "", info.param.outer ? "_outer" : "",
                                         info.param.tensor > 1 ? concat("_tensor", info.param.tensor) : "");
                         });

} // namespace
} // namespace trireme::estimate
