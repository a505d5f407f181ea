// What estimate_zero2_memory() and estimate_zero3_memory() say of a module, against what ranks allocate for it and
// against `trireme estimate`.
#include "allocated.h"

#include <trireme/comm/host_memory.h>
#include <trireme/engine/initialize.h>
#include <trireme/engine/zero_memory.h>
#include <trireme/models/gpt.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/estimate/moves.h>
#include <trireme/plan/run_estimate.h>
#include <trireme/shards/zero/sharded.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <tests/support/folder_on_disk.h>
#include <tests/support/folders.h>
#include <tests/support/run_ranks.h>
#include <tests/support/sanitized.h>

#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <tuple>

namespace trireme::engine {
namespace {

using offload::Place;
using testing::HasSubstr;
using Row = ZeroMemory::Row;

constexpr int64_t kWidth = 192;
constexpr int64_t kLayers = 24;

/// 900 thousand parameters in layers, and a frozen one.
struct SmallModelImpl : torch::nn::Module {
  SmallModelImpl() {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers->emplace_back(kWidth, kWidth);
    }
    register_module("layers", layers);
    register_module("head", head);
    frozen = register_parameter("frozen", torch::ones({kWidth}), /*requires_grad=*/false);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : *layers) {
      x = torch::tanh(layer->forward(x));
    }
    return head->forward(x * frozen);
  }
  zero::ShardedList<torch::nn::Linear> layers;
  torch::nn::Linear head{kWidth, 1};
  at::Tensor frozen;
};
TORCH_MODULE(SmallModel);

class OneRow : public data::Dataset {
 public:
  int64_t size() const override { return 64; }
  data::Batch get(std::span<const int64_t> indices) const override {
    return {
        {torch::ones({std::ssize(indices), kWidth})}, {torch::zeros({std::ssize(indices), 1})}, std::ssize(indices)};
  }
  std::string describe() const override { return "one row"; }
};

config::EngineConfig config_of(int zero_stage) {
  config::EngineConfig config;
  config.batch.micro = 1;
  config.zero.stage = zero_stage;
  config.zero.param_persistence_threshold = 1000;
  config.data_parallel.bucket_bytes = 400'000;
  config.data_parallel.first_bucket_bytes = 400'000;
  config.offload.parameters.max_in_cpu = 0;
  config.offload.optimizer.buffer_count = config.offload.parameters.buffer_count = 3;
  return config;
}

ZeroMemory memory_of(torch::nn::Module& model, int zero_stage, int64_t ranks, int64_t hosts,
                     const ZeroMemoryOptions& options) {
  return zero_stage == 2 ? estimate_zero2_memory(model, ranks, hosts, options)
                         : estimate_zero3_memory(model, ranks, hosts, options);
}

const Row& row_of(const ZeroMemory& memory, Place states, Place parameters, bool zero_init = false) {
  for (const Row& row : memory.rows) {
    if (row.states == states && row.parameters == parameters && row.zero_init == zero_init) {
      return row;
    }
  }
  throw Error("test", "there is no such row");
}

struct ZeroCase {
  int ranks;
  int zero_stage;
  Place states;
  Place parameters;
};

class ZeroMemoryOfRanks : public testing::TestWithParam<ZeroCase> {};

// On the CPU, in memory and in files.
TEST_P(ZeroMemoryOfRanks, IsWhatInitializeAllocates) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer's allocator is its own";
  }
  const ZeroCase c = GetParam();
  const ScratchFolder scratch(make_scratch_folder("trireme_zero_memory", test::folder_on_disk()));
  test::on_ranks(c.ranks, [&](comm::World& world) {
    at::set_num_threads(1);
    const estimate::Allocated allocated; // and what ranks share with each other
    const int64_t shared_before = comm::own_shared_bytes();
    InitializeOptions options;
    options.config = config_of(c.zero_stage);
    options.config.offload.optimizer.place = c.states;
    options.config.offload.parameters.place = c.parameters;
    options.config.offload.optimizer.nvme_path = options.config.offload.parameters.nvme_path = scratch.path;
    options.training_data = std::make_shared<OneRow>();
    SmallModel model;
    const Row row = row_of(memory_of(*model, c.zero_stage, c.ranks, 1, {.config = options.config, .on_gpu = false}),
                           c.states, c.parameters);
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable {
      return torch::nn::functional::mse_loss(model->forward(batch.input()), batch.target());
    };
    const Initialized made = initialize(world, options);
    for (int step = 0; step < 2; ++step) {
      made.engine->train_batch();
    }
    world.group().barrier("trained").wait();
    constexpr int64_t kSmall = 100'000; // batches, losses, what backends keep
    const int64_t states = row.parameter_bytes + row.gradient_bytes + row.state_bytes + row.master_bytes;
    const int64_t seen = allocated.now() + comm::own_shared_bytes() - shared_before;
    EXPECT_GT(seen, (c.states == Place::device ? row.rank_bytes() : states) - kSmall)
        << "buffers of files are not tensors";
    EXPECT_LT(seen, row.rank_bytes() + kSmall) << "states " << states << ", buffers " << row.buffer_bytes;
    std::printf("ZeRO %d, %d ranks, rank %d: allocated %ld, states %ld, with buffers %ld\n", c.zero_stage, c.ranks,
                world.rank(), static_cast<long>(seen), static_cast<long>(states), static_cast<long>(row.rank_bytes()));
    std::fflush(stdout);
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, ZeroMemoryOfRanks,
    testing::Values(ZeroCase{1, 2, Place::device, Place::device}, ZeroCase{2, 2, Place::device, Place::device},
                    ZeroCase{4, 2, Place::device, Place::device}, ZeroCase{1, 3, Place::device, Place::device},
                    ZeroCase{2, 3, Place::device, Place::device}, ZeroCase{4, 3, Place::device, Place::device},
                    ZeroCase{1, 2, Place::nvme, Place::device}, ZeroCase{2, 2, Place::nvme, Place::device},
                    ZeroCase{4, 2, Place::nvme, Place::device}, ZeroCase{1, 3, Place::nvme, Place::nvme},
                    ZeroCase{2, 3, Place::nvme, Place::nvme}, ZeroCase{4, 3, Place::nvme, Place::device}),
    [](const auto& info) {
      return concat("stage", info.param.zero_stage, "_", info.param.ranks, "ranks",
                    info.param.states == Place::nvme ? "_states" : "",
                    info.param.parameters == Place::nvme ? "_parameters" : "");
    });

// The same numbers as `trireme estimate`, also for GPUs, which tests/sim_device compares with what a device has.
TEST(ZeroMemoryTest, IsWhatTheEstimateOfARunSays) {
  for (const auto& [device, stage, states, parameters] : {std::tuple("cpu", 2, Place::device, Place::device),
                                                          {"cpu", 3, Place::nvme, Place::nvme},
                                                          {"cuda", 2, Place::host, Place::device},
                                                          {"cuda", 2, Place::nvme, Place::device},
                                                          {"cuda", 3, Place::host, Place::host},
                                                          {"cuda", 3, Place::device, Place::device}}) {
    for (const char* const bf16 : {"false", "true"}) {
      SCOPED_TRACE(concat(device, ", ZeRO ", stage, ", bf16 ", bf16));
      const std::string text = concat(
          R"({"model": {"type": "gpt", "layers": 6, "hidden": 64, "heads": 2, "sequence_length": 8, "vocab_size": 50}, "data": {"type": "tokens", "train": ["t.bin"]},
        "training": {"steps": 1, "device": ")",
          device, R"("}, "engine": {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": )", bf16,
          R"(}, "zero_optimization": {"stage": )", stage,
          R"(, "stage3_param_persistence_threshold": 500, "offload_optimizer": {"device": ")", offload::word(states),
          R"(", "nvme_path": "/n"})",
          stage == 3 ? concat(R"(, "offload_param": {"device": ")", offload::word(parameters),
                              R"(", "nvme_path": "/n", "max_in_cpu": 0})")
                     : "",
          "}}}");
      const config::RunConfig config = config::read_run(JsonNode::parse(text, "run.json"), "/");
      const estimate::Run run = plan::describe(config, 4).run;
      const estimate::StageMemory expected = estimate::memory_of(run).front();
      models::Gpt model(config.model.gpt);
      const ZeroMemory memory =
          memory_of(*model, stage, 2, 2, {.config = config.engine, .on_gpu = std::string(device) == "cuda"});
      const Row& row = row_of(memory, states, parameters, stage == 3);
      EXPECT_EQ(memory.parameters, run.model.parameters());
      using estimate::Category;
      EXPECT_EQ(row.parameter_bytes, expected.item(Category::parameters).bytes);
      EXPECT_EQ(row.gradient_bytes, expected.item(Category::gradients).bytes);
      EXPECT_EQ(row.state_bytes, expected.item(Category::optimizer_states).bytes);
      EXPECT_EQ(row.master_bytes, expected.item(Category::masters).bytes);
      EXPECT_EQ(row.buffer_bytes,
                expected.item(Category::communication_buffers).bytes + expected.item(Category::offload_buffers).bytes);
      const estimate::StageMoves moves = estimate::moves_of(run).front();
      EXPECT_EQ(row.file_bytes, 2 * moves.disk_bytes()) << "of two ranks";
      if (std::string(device) == "cuda" && stage == 3) {
        EXPECT_EQ(row.host_bytes, 2 * moves.host_peak());
      }
    }
  }
}

TEST(ZeroMemoryTest, HasARowForEachWay) {
  SmallModel model;
  const ZeroMemory two = estimate_zero2_memory(*model, 8);
  EXPECT_EQ(two.rows.size(), 3u);
  const ZeroMemory three = estimate_zero3_memory(*model, 8, 2, {.config = config_of(3)});
  EXPECT_EQ(three.rows.size(), 10u);
  const int64_t numel = kLayers * (kWidth * kWidth + kWidth) + kWidth + 1 + kWidth;
  EXPECT_EQ(three.parameters, numel);
  EXPECT_EQ(three.trained, numel - kWidth);
  EXPECT_EQ(three.largest_unit, kWidth * kWidth + kWidth);
  const Row& whole = row_of(three, Place::device, Place::device, false);
  EXPECT_EQ(whole.host_bytes, 8 * 4 * numel) << "each rank builds all of it on the host";
  EXPECT_EQ(row_of(three, Place::device, Place::device, true).host_bytes, 0);
  EXPECT_LT(row_of(three, Place::host, Place::host, true).peak_bytes(), whole.peak_bytes());
  EXPECT_GT(row_of(three, Place::nvme, Place::nvme, true).file_bytes, 0);
  EXPECT_LE(three.rows.front().peak_bytes(), three.rows.back().peak_bytes());
  EXPECT_EQ(estimate_zero3_memory(*model, 8, 2, {.on_gpu = false}).rows.size(), 6u) << "the host is where the model is";
}

TEST(ZeroMemoryTest, PrintsATable) {
  SmallModel model;
  const std::string table = estimate_zero3_memory(*model, 8, 2).table();
  EXPECT_THAT(
      table,
      HasSubstr("ZeRO 3, 2 hosts x 8 ranks: 890k parameters, 890k of them trained, 37.1k in the largest unit\n"));
  EXPECT_THAT(table, HasSubstr("per host  per GPU   in files of a host  options\n"));
  EXPECT_THAT(table, HasSubstr("  offload_param=cpu, offload_optimizer=cpu, zero_init=1\n"));
  EXPECT_THAT(table, HasSubstr("note: offload_param to \"nvme\" moves nothing: each parameter has fewer than 100000 "
                               "elements (stage3_param_persistence_threshold)"));
  std::printf("%s", table.c_str());
  EXPECT_THAT(estimate_zero2_memory(*model, 8).table(), HasSubstr("  offload_optimizer=cpu\n"));
}

/// The matrices of a block, without memory.
struct MetaBlockImpl : torch::nn::Module {
  explicit MetaBlockImpl(int64_t hidden) {
    for (const auto& [name, rows] : {std::pair("qkv", 3), {"attention", 1}, {"up", 4}, {"down", 4}}) {
      register_parameter(name, torch::empty({rows * hidden, hidden}, at::kMeta));
    }
  }
};
TORCH_MODULE(MetaBlock);

// 13 billion parameters on 16 GPUs, as docs/memory.md has it.
TEST(ZeroMemoryTest, PrintsThePagesTable) {
  torch::nn::Module model;
  zero::ShardedList<MetaBlock> blocks;
  for (int i = 0; i < 40; ++i) {
    blocks->emplace_back(5120);
  }
  model.register_module("blocks", blocks);
  model.register_parameter("embedding", torch::empty({50257, 5120}, at::kMeta));
  ZeroMemoryOptions options;
  options.config.precision.compute = precision::Type::bf16;
  options.config.offload.parameters.max_in_cpu = 0;
  const std::string table = estimate_zero3_memory(model, 8, 2, options).table();
  std::printf("%s", table.c_str());
  EXPECT_THAT(read_file(std::filesystem::path(test::source_dir()) / "docs/memory.md"), HasSubstr(table));
}

TEST(ZeroMemoryTest, AModelOnTheMetaDeviceDoes) {
  torch::nn::Module model;
  model.register_parameter("weight", torch::empty({1 << 20, 1 << 20}, at::kMeta));
  const ZeroMemory memory = estimate_zero2_memory(model, 8, 128);
  EXPECT_EQ(memory.parameters, int64_t{1} << 40);
  EXPECT_GE(row_of(memory, Place::device, Place::device).peak_bytes(), int64_t{8} << 40);
  EXPECT_THROW(estimate_zero2_memory(model, 0), InputError);
}

} // namespace
} // namespace trireme::engine
