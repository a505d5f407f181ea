// Linear layers in tiles under ZeRO: the numbers of layers in one piece, one tile at a time in memory, and checkpoints
// that do not tell.
#include "small_run.h"

#include <trireme/base/file.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/device/absent_memory.h>
#include <trireme/memory/recompute/recompute.h>
#include <trireme/models/gpt_layers.h>
#include <trireme/shards/zero/init.h>
#include <trireme/shards/zero/tiled_linear.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <ATen/record_function.h>

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

constexpr int64_t kTiledWidth = 24;
constexpr int64_t kTiledInner = 96;
constexpr int64_t kTiles = 8;

struct TiledKind {
  bool tiled = true;
  int64_t in_splits = 1;
  bool recompute = false;
};

/// A part of a transformer whose two large layers are in tiles, between others that are not.
struct TiledBlockImpl : torch::nn::Module {
  explicit TiledBlockImpl(const TiledKind& kind) {
    torch::manual_seed(8); // tiles draw numbers before they take a Linear's
    first = register_module("first", torch::nn::Linear(kTiledWidth, kTiledWidth));
    last = register_module("last", torch::nn::Linear(kTiledWidth, kTiledWidth));
    torch::nn::Linear up_values(kTiledWidth, kTiledInner);
    torch::nn::Linear down_values(kTiledInner, kTiledWidth);
    if (kind.tiled) {
      up_tiles = register_module(
          "up", zero::TiledLinear(*up_values, zero::TiledLinearOptions{.in_splits = kind.in_splits,
                                                                       .out_splits = kTiles / kind.in_splits}));
      down_tiles = register_module(
          "down", zero::TiledLinear(*down_values, zero::TiledLinearOptions{.in_splits = kind.in_splits,
                                                                           .out_splits = kTiles / kind.in_splits}));
    } else {
      up = register_module("up", up_values);
      down = register_module("down", down_values);
    }
    torch::manual_seed(9);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = torch::tanh(first->forward(x));
    const at::Tensor z = torch::gelu(up ? up->forward(y) : up_tiles->forward(y));
    return x + last->forward(torch::tanh(down ? down->forward(z) : down_tiles->forward(z)));
  }
  torch::nn::Linear first{nullptr}, up{nullptr}, down{nullptr}, last{nullptr};
  zero::TiledLinear up_tiles{nullptr}, down_tiles{nullptr};
};
TORCH_MODULE(TiledBlock);

struct TiledNetImpl : torch::nn::Module {
  explicit TiledNetImpl(const TiledKind& kind) : recompute(kind.recompute) {
    torch::manual_seed(8);
    embedding = register_module("embedding", zero::Sharded<torch::nn::Embedding>(31, kTiledWidth));
    for (int i = 0; i < 2; ++i) {
      blocks->emplace_back(kind);
    }
    register_module("blocks", blocks);
    torch::manual_seed(9);
    torch::nn::Linear values(kTiledWidth, 31);
    if (kind.tiled) { // a unit of no other
      head_tiles = register_module("head", zero::TiledLinear(*values, zero::TiledLinearOptions{.out_splits = 3}));
    } else {
      head = register_module("head", values);
    }
  }
  at::Tensor loss(const data::Batch& batch) {
    at::Tensor x = embedding->forward(batch.input());
    for (auto& block : *blocks) {
      x = recompute ? recompute::call([block](const at::Tensor& y) mutable { return block->forward(y); }, x)
                    : block->forward(x);
    }
    const at::Tensor logits = head ? head->forward(x) : head_tiles->forward(x);
    return torch::cross_entropy_loss(logits.flatten(0, 1), batch.target().flatten());
  }
  bool recompute;
  zero::Sharded<torch::nn::Embedding> embedding{nullptr};
  zero::ShardedList<TiledBlock> blocks;
  torch::nn::Linear head{nullptr};
  zero::TiledLinear head_tiles{nullptr};
};
TORCH_MODULE(TiledNet);

struct TiledRun {
  TiledNet model;
  Initialized made;

  TiledRun(comm::World& world, const TiledKind& kind, const config::EngineConfig& config) : model(kind) {
    start(world, config);
  }
  TiledRun(comm::World& world, TiledNet net, const config::EngineConfig& config) : model(std::move(net)) {
    start(world, config);
  }
  void start(comm::World& world, const config::EngineConfig& config) {
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [net = model](const data::Batch& batch) mutable { return net->loss(batch); };
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    made = initialize(world, options);
  }
  double step() { return made.engine->train_batch().item<double>(); }
};

config::EngineConfig tiled_config(int stage, int64_t accumulation = 1) {
  config::EngineConfig config = zero_config(stage, accumulation);
  config.zero.param_persistence_threshold = 0;
  return config;
}

struct TiledZeroCase {
  int stage;
  int ranks;
};

class TiledEqualsUntiled : public testing::TestWithParam<TiledZeroCase> {};

TEST_P(TiledEqualsUntiled, ForTwentySteps) {
  const TiledZeroCase c = GetParam();
  for (const TiledKind kind : {TiledKind{}, TiledKind{true, 2}, TiledKind{true, 1, true}, TiledKind{true, 4, true}}) {
    EXPECT_THAT(run_ranks(c.ranks,
                          [&](comm::World& world) {
                            TiledRun untiled(world, TiledKind{false}, tiled_config(0));
                            TiledRun tiled(world, kind, tiled_config(c.stage));
                            EXPECT_EQ(tiled.made.engine->num_parameters(), untiled.made.engine->num_parameters());
                            for (int step = 0; step < 20; ++step) {
                              const double expected = untiled.step();
                              EXPECT_NEAR(tiled.step(), expected, 2e-6 * expected) << "step " << step;
                            }
                          }),
                IsEmpty())
        << kind.in_splits << " in splits" << (kind.recompute ? ", recomputed" : "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, TiledEqualsUntiled,
                         testing::Values(TiledZeroCase{0, 1}, TiledZeroCase{0, 2}, TiledZeroCase{1, 2},
                                         TiledZeroCase{2, 2}, TiledZeroCase{3, 1}, TiledZeroCase{3, 2},
                                         TiledZeroCase{1, 4}, TiledZeroCase{2, 4}, TiledZeroCase{3, 4}),
                         [](const auto& info) {
                           return concat("stage", info.param.stage, "_", info.param.ranks, "ranks");
                         });

/// The most elements of tiles that have memory, and of their gradients, during any operator.
struct LiveTiles {
  explicit LiveTiles(const torch::nn::Module& model) {
    const auto tiles = zero::placements_of_tiles(model);
    for (const auto& item : model.named_parameters()) {
      if (tiles.count(item.value().unsafeGetTensorImpl()) != 0) {
        parameters.push_back(item.value());
        all += item.value().numel();
        largest = std::max(largest, item.value().numel());
      }
    }
    the = this;
    handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
          the->look();
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~LiveTiles() { at::removeCallback(handle); }
  void look() {
    int64_t now = 0;
    for (const at::Tensor& parameter : parameters) {
      now += device::has_memory(parameter) ? parameter.numel() : 0;
    }
    most = std::max(most, now);
    ++looks;
  }

  static inline thread_local LiveTiles* the = nullptr;
  std::vector<at::Tensor> parameters;
  int64_t all = 0;
  int64_t largest = 0;
  int64_t most = 0;
  int64_t looks = 0;
  at::CallbackHandle handle = 0;
};

TEST(TiledLinearEngineTest, OneTileIsThereAndTheNext) {
  for (const bool recompute : {false, true}) {
    for (const int64_t ahead : {int64_t{0}, int64_t{-1}}) {
      EXPECT_THAT(run_ranks(2,
                            [&](comm::World& world) {
                              config::EngineConfig config = tiled_config(3);
                              if (ahead == 0) {
                                config.zero.prefetch_elements = 0;
                              }
                              TiledRun run(world, TiledKind{true, 2, recompute}, config);
                              LiveTiles live(*run.model);
                              for (int step = 0; step < 3; ++step) {
                                run.step();
                              }
                              const int64_t largest = live.largest + live.largest / (kTiledWidth / 2); // with its bias
                              EXPECT_GT(live.looks, 500);
                              EXPECT_GT(live.most, 0);
                              EXPECT_LE(live.most, (ahead == 0 ? 1 : 2) * largest) << "of " << live.all;
                              EXPECT_GT(live.all, 8 * largest) << "else this shows nothing";
                            }),
                  IsEmpty())
          << (recompute ? "recomputed, " : "") << (ahead == 0 ? "nothing ahead" : "one ahead");
    }
  }
}

/// Tiles that are read from files as they are used, and stepped in files: the bits of the run in memory, and no more
/// tiles there at a time.
TEST(TiledLinearEngineTest, FilesChangeNoBit) {
  const ScratchFolder scratch(make_scratch_folder("trireme_tiled"));
  for (const int ranks : {1, 2}) {
    for (const bool recompute : {false, true}) {
      EXPECT_THAT(
          run_ranks(ranks,
                    [&](comm::World& world) {
                      config::EngineConfig config = tiled_config(3, 2);
                      TiledRun in_memory(world, TiledKind{true, 2, recompute}, config);
                      config.offload.optimizer.place = config.offload.parameters.place = offload::Place::nvme;
                      config.offload.optimizer.nvme_path = config.offload.parameters.nvme_path = scratch.path;
                      config.offload.optimizer.buffer_count = config.offload.parameters.buffer_count = 3;
                      config.offload.optimizer.pipeline_read = config.offload.optimizer.pipeline_write = true;
                      config.offload.parameters.max_in_cpu = 0;
                      TiledRun in_files(world, TiledKind{true, 2, recompute}, config);
                      LiveTiles live(*in_files.model);
                      for (int step = 0; step < 20; ++step) {
                        const double expected = in_memory.step();
                        EXPECT_EQ(in_files.step(), expected) << "step " << step;
                      }
                      const int64_t largest = live.largest + live.largest / (kTiledWidth / 2); // with its bias
                      EXPECT_GT(live.most, 0);
                      EXPECT_LE(live.most, 2 * largest) << "of " << live.all;
                      const offload::Traffic moved = in_files.made.engine->offload_traffic().value();
                      const int64_t of_tiles = 4 * live.all / ranks; // bytes that this rank has of them
                      EXPECT_GT(moved.read, 20 * 2 * 2 * of_tiles) << "every forward and backward of two micro-batches";
                      const auto expected = in_memory.made.engine->gather_parameters(in_memory.model->parameters());
                      const auto found = in_files.made.engine->gather_parameters(in_files.model->parameters());
                      for (const auto& item : in_memory.model->named_parameters()) {
                        EXPECT_TRUE(in_files.model->named_parameters()[item.key()].equal(item.value())) << item.key();
                      }
                    }),
          IsEmpty())
          << ranks << (recompute ? " ranks, recomputed" : " ranks");
    }
  }
}

/// Under zero::Init tiles are sharded one by one as they are built, and it is the same model.
TEST(TiledLinearEngineTest, InitBuildsTheSameModel) {
  for (const int stage : {1, 3}) {
    EXPECT_THAT(run_ranks(2,
                          [&](comm::World& world) {
                            TiledRun plain(world, TiledKind{true, 2}, tiled_config(stage));
                            std::optional<zero::Init> init(std::in_place, world);
                            TiledNet net(TiledKind{true, 2});
                            for (const auto& item : net->named_parameters()) {
                              EXPECT_FALSE(device::has_memory(item.value())) << item.key();
                            }
                            init.reset();
                            TiledRun early(world, net, tiled_config(stage));
                            for (int step = 0; step < 4; ++step) {
                              EXPECT_EQ(early.step(), plain.step()) << "step " << step;
                            }
                          }),
                IsEmpty())
        << "stage " << stage;
  }
}

/// Layers of a list are sharded with their tiles at first, and gathered without them later.
TEST(TiledLinearEngineTest, LayersOfAListHaveTiles) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](comm::World& world) {
      const auto run_list = [&](bool tiled, int stage, int64_t interval) {
        torch::manual_seed(8);
        pipeline::PipelineOptions layers;
        layers.activation_checkpoint_interval = interval;
        InitializeOptions options;
        const TiledKind kind{tiled, 2};
        options.pipeline = std::make_shared<pipeline::PipelineModule>(
            pipeline::LayerList{pipeline::LayerSpec<torch::nn::Embedding>(31, kTiledWidth),
                                pipeline::LayerSpec<TiledBlock>(kind), pipeline::LayerSpec<TiledBlock>(kind),
                                pipeline::LayerSpec<torch::nn::Linear>(kTiledWidth, 31)},
            models::token_loss, layers);
        options.config = tiled_config(stage, 2);
        options.training_data = std::make_shared<Counting>();
        options.shuffle = false;
        const auto made = initialize(world, options);
        std::vector<double> losses;
        for (int step = 0; step < 6; ++step) {
          losses.push_back(made.engine->train_batch().item<double>());
        }
        return losses;
      };
      const std::vector<double> expected = run_list(false, 0, 0);
      EXPECT_THAT(run_list(true, 3, 0), testing::Pointwise(testing::DoubleNear(1e-5), expected));
      EXPECT_THAT(run_list(true, 3, 1), testing::Pointwise(testing::DoubleNear(1e-5), expected));
    });
  }
}

TEST(TiledLinearEngineTest, AnOptimizerThatNeedsTheNormOfTheWholeIsRefused) {
  on_ranks(1, [](comm::World& world) {
    config::EngineConfig config = tiled_config(0);
    config.optimizer->rule = optim::LambOptions{};
    EXPECT_THAT(test::error_of([&] { TiledRun run(world, TiledKind{}, config); }),
                testing::AllOf(testing::HasSubstr("tile_0_0.weight"), testing::HasSubstr("split into tiles")));
  });
}

TEST(TiledLinearEngineTest, CheckpointsFitOtherTilesAndNone) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_tiled_", ::getpid());
  const auto config_of = [](int stage, bool bf16) {
    config::EngineConfig config = tiled_config(stage);
    config.precision.compute = bf16 ? precision::Type::bf16 : precision::Type::fp32;
    return config;
  };
  for (const bool bf16 : {false, true}) {
    for (const auto& [stage, kind] :
         {std::pair{3, TiledKind{true, 2}}, {0, TiledKind{true, 4}}, {1, TiledKind{false}}}) {
      EXPECT_THAT(
          run_ranks(2,
                    [&, stage = stage, kind = kind](comm::World& world) {
                      TiledRun saved(world, kind, config_of(stage, bf16));
                      for (int step = 0; step < 3; ++step) {
                        saved.step();
                      }
                      saved.made.engine->save_checkpoint(folder);
                      const auto opened = checkpoint::Checkpoint::open(folder);
                      EXPECT_EQ(opened.entry("blocks.1.up.weight").shape,
                                (std::vector<int64_t>{kTiledInner, kTiledWidth}));
                      EXPECT_EQ(opened.entry("exp_avg/blocks.1.up.bias").shape, std::vector<int64_t>{kTiledInner});
                      const double next = saved.step();
                      for (const auto& [other, into] :
                           {std::pair{0, TiledKind{false}}, {3, TiledKind{true, 1}}, {2, TiledKind{true, 8}}}) {
                        TiledRun resumed(world, into, config_of(other, bf16));
                        ASSERT_TRUE(resumed.made.engine->load_checkpoint(folder));
                        EXPECT_NEAR(resumed.step(), next, (bf16 ? 1e-2 : 2e-6) * next) << "into stage " << other;
                        const auto whole = resumed.made.engine->gather_parameters(resumed.model->parameters());
                      }
                      TiledRun same(world, kind, config_of(stage, bf16));
                      ASSERT_TRUE(same.made.engine->load_checkpoint(folder));
                      EXPECT_EQ(same.step(), next);
                    }),
          IsEmpty())
          << "saved at stage " << stage << (bf16 ? ", bf16" : "");
      fs::remove_all(folder);
    }
  }
}

} // namespace
} // namespace trireme::engine
