// Pipelines of layers that are not a GPT: what travels, what is shared, and that all compute as one process does.
#include "free_run.h"

#include <trireme/base/error.h>

#include <tests/support/run_ranks.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/activation.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <chrono>
#include <filesystem>
#include <thread>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using pipeline::Layer;
using pipeline::LayerList;
using pipeline::LayerSpec;
using pipeline::PipelineModule;
using pipeline::PipelineOptions;
using pipeline::Tensors;
using pipeline::TiedLayerSpec;
using test::on_ranks;
using test::run_ranks;

// The same layers on some stages and in one process.
void expect_same_as_one_process(const std::function<LayerList()>& layers, int stages,
                                const std::function<data::Batch(int)>& make, PipelineOptions options = {},
                                int replicas = 1) {
  on_ranks(stages * replicas, [&](comm::World& world) {
    FreeRun run(world, layers(), stages, 4, options);
    const std::vector<double> got = losses(run, make);
    if (world.rank() != 0) {
      return;
    }
    PipelineOptions whole_options = options;
    whole_options.bounds.clear();
    whole_options.seed_layers = true;
    PipelineModule whole(
        layers(),
        [](const Tensors& outputs, const Tensors& targets) { return at::mse_loss(outputs.at(0), targets.at(0)); },
        whole_options);
    whole.build();
    torch::optim::AdamW optimizer(whole.parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0));
    int number = 0;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      double sum = 0;
      for (int m = 0; m < 4; ++m) {
        const data::Batch batch = make(number++);
        const at::Tensor loss = whole.loss(whole.forward(batch.inputs), batch.targets) / 4;
        loss.backward();
        sum += loss.item<double>();
      }
      nn::utils::clip_grad_norm_(whole.parameters(), 1.0);
      optimizer.step();
      EXPECT_NEAR(got[step], sum, 2e-6 * std::abs(sum)) << "step " << step;
    }
  });
}

void expect_same_as_one_process(const LayerList& layers, int stages, const std::function<data::Batch(int)>& make,
                                PipelineOptions options = {}, int replicas = 1) {
  expect_same_as_one_process([&] { return layers; }, stages, make, std::move(options), replicas);
}

// Applies its layer once more in every fourth forward.
struct SometimesTwiceImpl : nn::Module {
  SometimesTwiceImpl() : linear(register_module("linear", nn::Linear(8, 8))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor once = linear(x).tanh();
    return ++forwards % 4 == 0 ? linear(once).tanh() : once;
  }
  nn::Linear linear;
  int forwards = 0;
};
TORCH_MODULE(SometimesTwice);

// Where a parameter is used twice its gradient is not put off, while that of earlier micro-batches still is.
TEST(PipelineBehaviourTest, ZeroBubbleOfGraphsThatDifferBetweenMicroBatches) {
  PipelineOptions options;
  options.bounds = {0, 1, 3};
  options.schedule = pipeline::ScheduleKind::zero_bubble;
  const LayerList layers{LayerSpec<nn::Linear>(4, 8), LayerSpec<SometimesTwice>(), LayerSpec<nn::Linear>(8, 1)};
  for (const int replicas : {1, 2}) {
    expect_same_as_one_process(layers, 2, [](int m) { return row_batch(m); }, options, replicas);
  }
}

TEST(PipelineBehaviourTest, TiesInTheOppositeOrderOnTheLastStage) {
  const auto tied = [](const char* key) { return TiedLayerSpec<nn::Linear>(key, 4, 4); };
  PipelineOptions options;
  options.bounds = {0, 2, 5};
  expect_same_as_one_process(
      LayerList{tied("b"), tied("a"), tied("a"), tied("b"), [](const at::Tensor& x) { return x.sum(1, true); }}, 2,
      [](int m) { return row_batch(m); }, options);
}

// By hand or with train_batch(): the same.
TEST(PipelineBehaviourTest, CopiesOfATiedAttributeInOneStageStayEqual) {
  const auto linear = [] { return TiedLayerSpec<nn::Linear>("w", 4, 4).attributes({"weight"}); };
  const LayerList layers{linear(), nn::Tanh(), linear(), [](const at::Tensor& x) { return x.sum(1, true); }};
  for (const int replicas : {1, 2}) {
    on_ranks(replicas, [&](comm::World& world) {
      FreeRun by_hand(world, layers, 1, 4);
      FreeRun whole(world, layers, 1, 4);
      const std::vector<double> expected = losses(whole, [](int m) { return row_batch(m); });
      int number = 0;
      for (const double loss : expected) {
        for (int m = 0; m < 4; ++m) {
          by_hand.engine->backward(by_hand.engine->forward(row_batch(number++)));
          by_hand.engine->step();
        }
        EXPECT_EQ(by_hand.engine->loss(), loss);
      }
      const auto weights = by_hand.model->named_parameters();
      EXPECT_TRUE(weights["0.weight"].equal(weights["2.weight"]));
    });
  }
}

TEST(PipelineBehaviourTest, InPlaceLayersRightAfterAStageBoundary) {
  PipelineOptions options;
  options.bounds = {0, 1, 3};
  expect_same_as_one_process(
      LayerList{LayerSpec<nn::Linear>(4, 8), LayerSpec<nn::ReLU>(nn::ReLUOptions(true)), LayerSpec<nn::Linear>(8, 1)},
      2, [](int m) { return row_batch(m); }, options);
}

TEST(PipelineBehaviourTest, ShapesMayChangeBetweenMicroBatches) {
  expect_same_as_one_process(LayerList{LayerSpec<nn::Linear>(4, 8), nn::Tanh(), LayerSpec<nn::Linear>(8, 1)}, 2,
                             [](int m) { return row_batch(m, 1 + m % 3); });
}

struct Block : nn::Module {
  Block() : linear(register_module("linear", nn::Linear(4, 4))) {}
  // hidden, bool mask, float table without gradient, and an output that nobody uses later
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& mask,
                                                                     const at::Tensor& table,
                                                                     const at::Tensor& unused) {
    const at::Tensor y = torch::tanh(linear->forward(x) + table).masked_fill(mask, 0);
    return {y, mask, table, unused.defined() ? y * 2 : y};
  }
  nn::Linear linear{nullptr};
};

TEST(PipelineBehaviourTest, MasksTablesAndUnusedOutputsTravel) {
  const LayerList layers{
      [](const at::Tensor& x, const at::Tensor& mask) { return Tensors{x, mask, torch::full({4}, 0.25), x.mean()}; },
      LayerSpec<Block>(), LayerSpec<Block>(), LayerSpec<Block>(),
      [](const at::Tensor& x, const at::Tensor&, const at::Tensor&, const at::Tensor&) { return x.sum(1, true); }};
  PipelineOptions options;
  options.bounds = {0, 2, 3, 5};
  expect_same_as_one_process(
      layers, 3,
      [](int m) {
        data::Batch batch = row_batch(m);
        batch.inputs.push_back(batch.inputs[0] > 0.8);
        return batch;
      },
      options);
}

TEST(PipelineBehaviourTest, StagesWithoutParametersOrLayers) {
  PipelineOptions options;
  options.bounds = {0, 1, 2, 2, 3};
  options.allow_empty_stages = true;
  expect_same_as_one_process(
      LayerList{[](const at::Tensor& x) { return x * 2; }, LayerSpec<nn::Linear>(4, 1),
                [](const at::Tensor& x) { return x + 1; }},
      4, [](int m) { return row_batch(m); }, options);
}

TEST(PipelineBehaviourTest, LayersTiedByOneAttributeAcrossAndWithinStages) {
  const auto linear = [] { return TiedLayerSpec<nn::Linear>("w", 4, 4).attributes({"weight"}); };
  const LayerList layers{linear(),   nn::Tanh(), linear(),
                         nn::Tanh(), linear(),   [](const at::Tensor& x) { return x.sum(1, true); }};
  // One process as plain libtorch: three biases, one weight.
  on_ranks(2, [&](comm::World& world) {
    PipelineOptions options;
    options.bounds = {0, 4, 6}; // two copies on the first stage, one on the second
    FreeRun run(world, layers, 2, 4, options);
    const std::vector<double> got = losses(run, [](int m) { return row_batch(m); });
    if (world.rank() != 0) {
      return;
    }
    torch::manual_seed(1234);
    nn::Linear first(4, 4);
    at::Tensor biases[3] = {first->bias, first->bias.detach().clone().requires_grad_(),
                            first->bias.detach().clone().requires_grad_()};
    const Tensors parameters = {first->weight, biases[0], biases[1], biases[2]};
    torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0));
    int number = 0;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      double sum = 0;
      for (int m = 0; m < 4; ++m) {
        const data::Batch batch = row_batch(number++);
        at::Tensor x = batch.input();
        for (int i = 0; i < 3; ++i) {
          x = at::linear(x, first->weight, biases[i]);
          x = i < 2 ? torch::tanh(x) : x.sum(1, true);
        }
        const at::Tensor loss = at::mse_loss(x, batch.target()) / 4;
        loss.backward();
        sum += loss.item<double>();
      }
      nn::utils::clip_grad_norm_(parameters, 1.0);
      optimizer.step();
      EXPECT_NEAR(got[step], sum, 2e-6 * std::abs(sum)) << "step " << step;
    }
  });
}

/// gloo adds up three ranks in an order that depends on where an element lies, and the two stages have other parameters
/// beside their copy.
TEST(PipelineBehaviourTest, CopiesOfATiedWeightStayEqualWhateverTheBackend) {
  test::RunOptions options;
  options.backend = "gloo";
  on_ranks(
      6,
      [](comm::World& world) {
        const auto tied = [] { return TiedLayerSpec<nn::Linear>("w", 24, 24); };
        const LayerList layers{LayerSpec<nn::Linear>(4, 24),  tied(), LayerSpec<nn::Linear>(24, 31),
                               LayerSpec<nn::Linear>(31, 24), tied(), LayerSpec<nn::Linear>(24, 1)};
        PipelineOptions two;
        two.bounds = {0, 4, 6};
        FreeRun run(world, layers, 2, 2, two);
        // The stages of a pipeline read the same samples. Layers that are seeded seed the default generator.
        torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(world.rank() % 3));
        for (int step = 0; step < 5; ++step) {
          run.engine->train_batch([&] {
            const at::Tensor inputs = torch::randn({3, 4}, generator);
            return data::Batch{{inputs}, {torch::randn({3, 1}, generator)}, 3};
          });
        }
        at::Tensor copies = torch::empty({6, 24, 24});
        world.group().all_gather(copies, run.model->ties().back().copies.front().detach().contiguous()).wait();
        for (int rank = 1; rank < 6; ++rank) {
          EXPECT_TRUE(copies[rank].equal(copies[0])) << "rank " << rank;
        }
      },
      options);
}

/// Each pipeline would cut where its own measurement says.
TEST(PipelineBehaviourTest, AMeasuredPartitionIsTheSameInAllReplicas) {
  on_ranks(4, [](comm::World& world) {
    const auto slow = [](bool is) {
      return [is](const at::Tensor& x) {
        std::this_thread::sleep_for(std::chrono::milliseconds(is ? 30 : 0));
        return x + 1;
      };
    };
    const bool first = world.rank() == 0;
    const LayerList layers{LayerSpec<nn::Linear>(4, 4), slow(first),  slow(first),
                           LayerSpec<nn::Linear>(4, 4), slow(!first), slow(!first),
                           LayerSpec<nn::Linear>(4, 1)};
    PipelineOptions options;
    options.partition = "profile";
    options.stages = 2;
    const auto model = std::make_shared<PipelineModule>(
        layers,
        [](const Tensors& outputs, const Tensors& targets) { return at::mse_loss(outputs.at(0), targets.at(0)); },
        options);
    model->set_sample_inputs({row_batch(0).input()});
    InitializeOptions all;
    all.pipeline = model;
    all.config = micro_batches(2, 2);
    initialize(world, all).engine->train_batch([] { return row_batch(1); });
    EXPECT_LE(model->partition().bounds[1], 3);
  });
}

/// Only the last stage sees that the loss is fp16 and cannot carry 2^16; all stages unscale by what was used.
TEST(PipelineBehaviourTest, AnFp16LossIsScaledByWhatFits) {
  on_ranks(2, [](comm::World& world) {
    const auto norms = [&](double scale) {
      const LayerList layers = {LayerSpec<nn::Linear>(4, 4), LayerSpec<nn::Linear>(4, 1)};
      PipelineOptions options;
      options.stages = 2;
      options.seed_layers = true;
      const auto mean_square = [](const Tensors& outputs, const Tensors& targets) {
        return at::mse_loss(outputs.at(0), targets.at(0).to(torch::kHalf)) / 64;
      };
      InitializeOptions all;
      all.pipeline = std::make_shared<PipelineModule>(layers, mean_square, options);
      all.config = micro_batches(1);
      all.config.gradient_clipping = 0;
      all.config.precision.compute = precision::Type::fp16;
      all.config.precision.cast_inputs = true;
      all.config.precision.loss_scale.loss_scale = scale;
      const auto engine = initialize(world, all).engine;
      std::vector<double> found;
      for (int step = 0; step < 3; ++step) {
        engine->train_batch([&] { return row_batch(step); });
        found.push_back(*engine->get_global_grad_norm());
      }
      EXPECT_EQ(engine->skipped_steps(), 0);
      EXPECT_EQ(*engine->loss_scale(), std::min(scale, 0x1p15));
      return found;
    };
    const std::vector<double> expected = norms(1024);
    const std::vector<double> found = norms(65536);
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(found[step], expected[step], 2e-3 * expected[step]);
    }
  });
}

// A linear layer that is not trained, and a buffer.
struct FrozenImpl : nn::Module {
  FrozenImpl()
      : linear(register_module("linear", nn::Linear(4, 4))), offset(register_buffer("offset", torch::rand({4}))) {
    for (at::Tensor& parameter : linear->parameters()) {
      parameter.requires_grad_(false);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x) + offset; }
  nn::Linear linear;
  at::Tensor offset;
};
TORCH_MODULE(Frozen);

// Each rank makes a module of its own; all stages have the first one's, under one name in every checkpoint.
TEST(PipelineBehaviourTest, AFrozenModuleGivenTwiceIsOneOnAnyNumberOfStages) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_frozen_twice_", ::getpid());
  for (const auto& [tied, stage] : {std::pair(false, 0), {false, 3}, {true, 0}, {true, 3}}) {
    on_ranks(4, [&, tied = tied, stage = stage](comm::World& world) {
      int64_t seed = world.rank();
      const auto run_on = [&](int stages) {
        torch::manual_seed(seed += world.size());
        const Frozen given;
        const Layer frozen = tied ? Layer(TiedLayerSpec<Frozen>("frozen")) : Layer(given);
        PipelineOptions options;
        if (stages > 1) {
          options.bounds = {0, 2, 4};
        }
        return FreeRun(world, {frozen, LayerSpec<nn::Linear>(4, 4), frozen, LayerSpec<nn::Linear>(4, 1)}, stages, 2,
                       options, stages == 1 ? stage : 0);
      };
      FreeRun two = run_on(2);
      two.engine->save_checkpoint(folder);
      const std::vector<double> expected = losses(two, [](int number) { return row_batch(number); });
      for (const int stages : {1, 2}) {
        FreeRun other = run_on(stages);
        EXPECT_TRUE(other.engine->load_checkpoint(folder));
        const fs::path again = folder / concat("of_", stages);
        other.engine->save_checkpoint(again);
        for (const int target : {1, 2}) {
          FreeRun last = run_on(target);
          EXPECT_TRUE(last.engine->load_checkpoint(again));
          const std::vector<double> found = losses(last, [](int number) { return row_batch(number); });
          for (size_t step = 0; step < expected.size(); ++step) {
            EXPECT_NEAR(found[step], expected[step], 2e-5 * expected[step])
                << stages << " to " << target << " stages, step " << step;
          }
        }
      }
    });
    fs::remove_all(folder);
  }
}

TEST(PipelineBehaviourTest, ATrainedModuleGivenTwiceMayBeInTwoChunksOfAStage) {
  PipelineOptions options;
  options.chunks = 2;
  options.schedule = pipeline::ScheduleKind::interleaved;
  expect_same_as_one_process(
      [] {
        torch::manual_seed(3);
        const nn::Linear twice(4, 4);
        return LayerList{twice, LayerSpec<nn::Linear>(4, 4), twice, LayerSpec<nn::Linear>(4, 1)};
      },
      2, [](int number) { return row_batch(number); }, options, 2);
}

} // namespace
} // namespace trireme::engine
