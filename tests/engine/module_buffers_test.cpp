// Buffers of a model, which every rank changes in its own way: BatchNorm's running mean and variance.
#include "small_run.h"

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/parallel/tensor/exchange.h>
#include <trireme/parallel/tensor/layers.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using test::on_ranks;
using test::run_ranks;

// Several norms, so that a checkpoint's buffers would come from several ranks.
nn::Sequential make_net() {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(4, 8), nn::BatchNorm1d(8), nn::Tanh(), nn::Linear(8, 6), nn::BatchNorm1d(6),
                        nn::Linear(6, 1));
}

struct NormRun {
  nn::Sequential net = make_net();
  std::shared_ptr<torch::nn::Module> module;
  Initialized made;
  int rank;
  std::function<void()> before_forward = [] {}; // without stages

  explicit NormRun(comm::World& world, bool broadcast = true, int stages = 0) : rank(world.rank()) {
    InitializeOptions options;
    const int64_t replicas = world.size() / std::max(stages, 1);
    const std::string text =
        concat(R"({"train_micro_batch_size_per_gpu": 6, "gradient_accumulation_steps": 2, "train_batch_size": )",
               12 * replicas, R"(, "broadcast_buffers": )", broadcast ? "true" : "false",
               R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})");
    options.config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
    if (stages > 0) {
      pipeline::PipelineOptions how;
      how.stages = stages;
      options.pipeline = std::make_shared<pipeline::PipelineModule>(
          net,
          [](const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
            return at::mse_loss(outputs.at(0), targets.at(0));
          },
          how);
      module = options.pipeline;
    } else {
      options.model = net.ptr();
      options.loss = [this](const data::Batch& batch) {
        before_forward();
        return (net->forward(batch.input()) - batch.target()).square().mean();
      };
      module = net.ptr();
    }
    made = initialize(world, options);
  }
  // Other data on every replica.
  data::Batch batch(int number) const {
    const int64_t replica = made.engine->group().rank();
    const at::Tensor x =
        torch::sin(torch::arange(24, torch::kFloat32).view({6, 4}) * (1.1 + replica) + number) + replica;
    return {{x}, {x.sum(1, true)}, 6};
  }
  double step(int number) {
    int micro = 0;
    return made.engine->train_batch([&] { return batch(2 * number + micro++); }).item<double>();
  }
  at::Tensor buffers() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& buffer : module->buffers()) {
      all.push_back(buffer.to(torch::kFloat64).flatten());
    }
    return torch::cat(all);
  }
  // Whether all replicas have the first one's.
  bool are_equal() const {
    at::Tensor first = buffers();
    made.engine->group().broadcast(first, 0).wait();
    at::Tensor differs = torch::tensor({first.equal(buffers()) ? 0 : 1});
    made.engine->group().all_reduce(differs).wait();
    return differs.item<int64_t>() == 0;
  }
};

TEST(ModuleBuffersTest, AreTheFirstReplicasInEveryStepAndEvaluation) {
  for (const int stages : {0, 2}) {
    on_ranks(stages == 0 ? 2 : 4, [stages](comm::World& world) {
      NormRun run(world, true, stages);
      for (int step = 0; step < 3; ++step) {
        run.step(step);
        EXPECT_FALSE(run.are_equal()) << "each has its own data";
        at::Tensor first = run.buffers();
        run.made.engine->group().broadcast(first, 0).wait();
        run.made.engine->eval_batch(run.batch(7));
        EXPECT_TRUE(run.buffers().equal(first));
      }
      const int64_t before = run.made.engine->bytes_sent();
      run.made.engine->eval_batch(run.batch(7));
      const int64_t again = run.made.engine->bytes_sent();
      run.made.engine->eval_batch(run.batch(7));
      EXPECT_EQ(run.made.engine->bytes_sent() - again, again - before) << "sent only when they may differ";
    });
  }
}

// As in DDP's forward: a loss that reads a buffer is the same function on every replica.
TEST(ModuleBuffersTest, AreTheFirstReplicasBeforeTheForwardOfAStep) {
  on_ranks(2, [](comm::World& world) {
    NormRun run(world);
    const at::Tensor start = run.buffers();
    std::vector<at::Tensor> seen;
    run.before_forward = [&] { seen.push_back(run.buffers()); };
    for (int step = 0; step < 3; ++step) {
      run.step(step);
      at::Tensor first = run.buffers(); // what a rank leaves, and what all of them begin the next step with
      run.made.engine->group().broadcast(first, 0).wait();
      EXPECT_FALSE(run.are_equal());
      run.step(10 + step);
      ASSERT_EQ(seen.size(), static_cast<size_t>(4 * (step + 1)));
      EXPECT_TRUE(seen[seen.size() - 2].equal(first)) << "step " << step;
    }
    EXPECT_TRUE(seen[0].equal(start));
  });
}

TEST(ModuleBuffersTest, AnEvaluationBetweenForwardAndBackwardDoesNoHarm) {
  on_ranks(2, [](comm::World& world) {
    NormRun run(world);
    run.step(0);
    Engine& engine = *run.made.engine;
    for (int micro = 0; micro < engine.gradient_accumulation_steps(); ++micro) {
      const at::Tensor loss = engine.forward(run.batch(2 + micro));
      engine.eval_batch(run.batch(7));
      engine.backward(loss);
      engine.step();
    }
    EXPECT_EQ(engine.global_steps(), 2);
  });
}

TEST(ModuleBuffersTest, MayBeLeftToEveryRank) {
  on_ranks(2, [](comm::World& world) {
    NormRun run(world, false);
    run.step(0);
    run.made.engine->eval_batch(run.batch(7));
    EXPECT_FALSE(run.are_equal());
  });
}

/// [B, T, 4] -> loss. The tensor ranks share the tokens of a sample, whose running statistics all have, and the eight
/// features between two layers, of whose offsets each has a part.
struct SplitNormImpl : torch::nn::Module, tensor::SplitModule {
  explicit SplitNormImpl(const tensor::Ranks& ranks) : ranks(ranks) {
    norm = register_module("norm", nn::BatchNorm1d(4));
    fc1 = register_module("fc1", tensor::ColumnParallelLinear(4, 8, ranks));
    fc2 = register_module("fc2", tensor::RowParallelLinear(8, 1, ranks));
    offsets = register_buffer("offsets", whole_offsets().narrow(0, 4 * ranks.group.rank(), 4).clone());
  }
  static at::Tensor whole_offsets() { return torch::arange(8, torch::kFloat32) / 10; }
  std::map<std::string, bucket::Placement> placements() const override {
    return {{"offsets", {.global_shape = {8}, .box_offset = {4 * ranks.group.rank()}}}};
  }
  at::Tensor loss(const data::Batch& batch) {
    const auto own = [&](const at::Tensor& x) { return tensor::take_part(x, ranks.group, tensor::kSequenceDim); };
    const at::Tensor x = own(batch.input());
    const at::Tensor y = fc2->forward(torch::tanh(fc1->forward(norm->forward(x.flatten(0, 1)).view_as(x))) + offsets);
    const at::Tensor share = (y - own(batch.target())).square().mean() / ranks.group.size();
    return tensor::sum_over_ranks(share.reshape({1}), ranks.group)[0];
  }

  tensor::Ranks ranks;
  nn::BatchNorm1d norm{nullptr};
  tensor::ColumnParallelLinear fc1{nullptr};
  tensor::RowParallelLinear fc2{nullptr};
  at::Tensor offsets;
};
TORCH_MODULE(SplitNorm);

TEST(ModuleBuffersTest, TensorRanksHaveTheSameUnlessEachHasAPart) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_split_buffers_", ::getpid());
  for (const bool broadcast : {true, false}) {
    on_ranks(4, [&](comm::World& world) {
      InitializeOptions options;
      options.mesh = mesh::training_mesh(world.group(), {.data = 2, .tensor = 2});
      options.sequence_parallel = true;
      torch::manual_seed(1);
      SplitNorm net(tensor::Ranks{options.mesh->group(mesh::Axis::tensor), /*sequence_parallel=*/true});
      const at::Tensor offsets = net->offsets.clone();
      net->norm->running_mean.add_(world.rank());
      net->offsets.add_(options.mesh->group(mesh::Axis::data).rank());
      const auto differ = [&] {
        at::Tensor first = torch::cat({net->norm->running_mean, net->norm->running_var});
        const at::Tensor mine = first.clone();
        world.group().broadcast(first, 0).wait();
        at::Tensor ranks = torch::tensor({first.equal(mine) ? 0 : 1});
        world.group().all_reduce(ranks).wait();
        return ranks.item<int64_t>() > 0;
      };
      std::vector<int> differed;
      options.model = net.ptr();
      options.loss = [&](const data::Batch& batch) {
        differed.push_back(differ());
        return net->loss(batch);
      };
      options.config = small_config(/*global_batch=*/6, /*accumulation=*/1);
      options.config.data_parallel.broadcast_buffers = broadcast;
      const Initialized made = initialize(world, options);
      EXPECT_FALSE(differ()) << "from the start";
      EXPECT_TRUE(net->offsets.equal(offsets)) << "each tensor rank's own, and the first replica's";
      const auto batch = [&](int number) {
        const at::Tensor x = torch::sin(
            torch::arange(48, torch::kFloat32).view({3, 4, 4}) * (1.1 + made.engine->group().rank()) + number);
        return data::Batch{{x}, {x.sum(2, true)}, 3};
      };
      for (int step = 0; step < 3; ++step) {
        made.engine->train_batch([&] { return batch(step); });
        EXPECT_TRUE(differ()) << "each has its own data and tokens";
      }
      made.engine->eval_batch(batch(7));
      EXPECT_EQ(differ(), !broadcast);
      EXPECT_THAT(differed, testing::ElementsAre(false, !broadcast, !broadcast, !broadcast))
          << "in three steps and an evaluation";
      EXPECT_TRUE(net->offsets.equal(offsets));
      made.engine->save_checkpoint(folder);
      if (world.rank() == 0) {
        const auto saved = checkpoint::Checkpoint::open(folder);
        EXPECT_TRUE(saved.read("norm.running_mean").equal(net->norm->running_mean));
        EXPECT_TRUE(saved.read("offsets").equal(SplitNormImpl::whole_offsets()));
      }
      net->offsets.zero_();
      ASSERT_TRUE(made.engine->load_checkpoint(folder));
      EXPECT_TRUE(net->offsets.equal(offsets));
    });
    fs::remove_all(folder);
  }
}

TEST(ModuleBuffersTest, ACheckpointHasThoseOfTheFirstReplica) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_buffers_", ::getpid());
  for (const bool broadcast : {true, false}) {
    on_ranks(3, [&](comm::World& world) {
      NormRun run(world, broadcast);
      for (int step = 0; step < 3; ++step) {
        run.step(step);
      }
      run.made.engine->save_checkpoint(folder);
      if (world.rank() == 0) {
        const auto saved = checkpoint::Checkpoint::open(folder);
        for (const auto& item : run.module->named_buffers()) {
          EXPECT_TRUE(saved.read(item.key()).equal(item.value())) << item.key();
        }
      }
      if (broadcast) {
        NormRun resumed(world);
        ASSERT_TRUE(resumed.made.engine->load_checkpoint(folder));
        for (int step = 3; step < 6; ++step) {
          EXPECT_EQ(resumed.step(step), run.step(step)) << "step " << step;
        }
        resumed.made.engine->eval_batch(run.batch(7));
        run.made.engine->eval_batch(run.batch(7));
        EXPECT_TRUE(resumed.buffers().equal(run.buffers()));
      }
    });
    fs::remove_all(folder);
  }
}

} // namespace
} // namespace trireme::engine
