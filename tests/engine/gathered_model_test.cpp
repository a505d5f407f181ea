// Engine::gather_model(): what torch::save() writes of a model that no rank has whole.
#include "split_run.h"

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/device/absent_memory.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <unistd.h>
#include <filesystem>
#include <sstream>

namespace trireme::engine {
namespace gathered_model {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;

nn::Sequential net_of(uint64_t seed) {
  torch::manual_seed(seed);
  return nn::Sequential(nn::Linear(4, 6), nn::Tanh(), nn::BatchNorm1d(6), nn::Linear(6, 5), nn::Dropout(0.0),
                        nn::Linear(5, 1));
}

at::Tensor mean_square(const at::Tensor& y, const at::Tensor& target) {
  return at::mse_loss(y, target);
}

constexpr int64_t kGatheredSteps = 3;

data::Batch rows(int64_t number) {
  const at::Tensor x = torch::sin(torch::arange(12).reshape({3, 4}) * (1.0 + static_cast<double>(number)));
  return {{x}, {x.sum(1, true)}, 3};
}

std::shared_ptr<Engine> train(comm::World& world, InitializeOptions options) {
  const auto engine = initialize(world, options).engine;
  for (int64_t step = 0; step < kGatheredSteps; ++step) {
    engine->train_batch([&] { return rows(step); });
  }
  return engine;
}

// The same in torch.
nn::Sequential trained_in_torch() {
  nn::Sequential net = net_of(1);
  torch::optim::AdamW optimizer(net->parameters(),
                                torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(0.1));
  for (int64_t step = 0; step < kGatheredSteps; ++step) {
    const data::Batch batch = rows(step);
    optimizer.zero_grad();
    mean_square(net->forward(batch.input()), batch.target()).backward();
    optimizer.step();
  }
  return net;
}

InitializeOptions in_stages(const nn::Sequential& net, int stages) {
  pipeline::PipelineOptions how;
  how.stages = stages;
  InitializeOptions options;
  options.config = small_config(3, 1, 0);
  options.pipeline = std::make_shared<pipeline::PipelineModule>(
      pipeline::LayerList(net),
      [](const pipeline::Tensors& y, const pipeline::Tensors& target) { return mean_square(y.at(0), target.at(0)); },
      how);
  return options;
}

template <typename Saved>
std::string saved(const Saved& value) {
  std::ostringstream out;
  torch::save(value, out);
  return out.str();
}

void load(nn::Sequential& net, const std::string& bytes) {
  std::istringstream in(bytes);
  torch::load(net, in);
}

std::string what_happens(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

void expect_equal(const nn::Module& found, const nn::Module& expected, double tolerance = 1e-6) {
  const auto compare = [&](const auto& a, const auto& b) {
    EXPECT_EQ(a.keys(), b.keys());
    for (const auto& item : b) {
      EXPECT_LE((a[item.key()].to(torch::kFloat) - item.value().to(torch::kFloat)).abs().max().template item<double>(),
                tolerance)
          << item.key();
    }
  };
  compare(found.named_parameters(), expected.named_parameters());
  compare(found.named_buffers(), expected.named_buffers());
}

TEST(GatheredModelTest, OfStagesLoadsIntoTheModelOfOneProcess) {
  on_ranks(3, [](comm::World& world) {
    nn::Sequential net = net_of(1);
    const auto engine = train(world, in_stages(net, 3));
    const std::shared_ptr<nn::Module> whole = engine->gather_model();
    ASSERT_EQ(whole != nullptr, world.rank() == 0);
    if (world.rank() == 0) {
      nn::Sequential loaded = net_of(2);
      load(loaded, saved(whole));
      expect_equal(*loaded, *trained_in_torch());
    }
  });
}

TEST(GatheredModelTest, WhatIsOnOtherStagesIsNotSavedByMistake) {
  on_ranks(2, [](comm::World& world) {
    nn::Sequential net = net_of(1);
    const auto engine = train(world, in_stages(net, 2));
    EXPECT_THAT(what_happens([&] { saved(net); }),
                AllOf(HasSubstr(world.rank() == 0 ? "is on stage 1" : "\"0.weight\" is on stage 0"),
                      HasSubstr("not trained here"), HasSubstr("gather_model()")));
    EXPECT_THAT(what_happens([&] { net->forward(rows(0).input()); }), AllOf(HasSubstr("not trained here")));
    EXPECT_THAT(what_happens([&] {
                  torch::serialize::OutputArchive archive;
                  engine->module().save(archive);
                }),
                AllOf(HasSubstr("2 stages"), HasSubstr("gather_model()")));
    const auto own = net[world.rank() == 0 ? 0 : 5]->as<nn::Linear>();
    const auto other = net[world.rank() == 0 ? 5 : 0]->as<nn::Linear>();
    EXPECT_TRUE(device::has_memory(own->weight));
    EXPECT_FALSE(device::has_memory(other->weight));
  });
}

// The same tensors as a checkpoint's, and a model of one process reads them.
void expect_what_a_checkpoint_has(const SplitLayout& layout) {
  const fs::path folder = fs::temp_directory_path() / concat("trireme_gathered_", ::getpid());
  on_ranks(layout.ranks(), [&](comm::World& world) {
    SplitRun run(world, layout, split_gpt_build({}));
    run.engine().train_batch();
    run.engine().save_checkpoint(folder);
    const double loss = run.engine().eval_batch(test::batch_of_step(Counting(), 0, 4)).item<double>();
    const std::shared_ptr<nn::Module> whole = run.engine().gather_model();
    if (world.rank() != 0) {
      return;
    }
    const auto checkpoint = checkpoint::Checkpoint::open(folder);
    const auto found = whole->named_parameters();
    for (const std::string& name : checkpoint.names("parameter")) {
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_TRUE(found[name].equal(checkpoint.read(name))) << name;
    }
    models::Gpt alone(split_gpt());
    std::istringstream in(saved(whole));
    torch::load(alone, in);
    alone->eval();
    const data::Batch batch = test::batch_of_step(Counting(), 0, 4);
    EXPECT_NEAR(alone->loss(batch.input(), batch.target()).item<double>(), loss, 1e-5);
  });
  fs::remove_all(folder);
}

TEST(GatheredModelTest, OfShardsOfTensorRanksAndOfAll) {
  expect_what_a_checkpoint_has({.data = 2, .zero_stage = 3});
  expect_what_a_checkpoint_has({.data = 1, .tensor = 2});
  expect_what_a_checkpoint_has({.pipe = 2, .data = 2, .tensor = 2, .zero_stage = 3, .accumulation = 2});
}

TEST(GatheredModelTest, InTheMiddleOfAStepItIsRefused) {
  on_ranks(1, [](comm::World& world) {
    SmallRun run(world, small_config(8, 2));
    const data::Batch batch = test::batch_of_step(Counting(), 0, 4);
    run.engine().backward(run.engine().forward(batch));
    run.engine().step();
    EXPECT_THAT(what_happens([&] { run.engine().gather_model(); }),
                AllOf(HasSubstr("gather_model() in the middle of a step"), HasSubstr("1 of 2 micro-batches")));
  });
}

} // namespace
} // namespace gathered_model
} // namespace trireme::engine
