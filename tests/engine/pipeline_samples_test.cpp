// Pipelines: what the stages read of one micro-batch is compared, and parameters that they share are stepped as in one
// process.
#include "small_run.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <set>

namespace trireme::engine {
namespace {

namespace nn = torch::nn;
using pipeline::LayerList;
using pipeline::LayerSpec;
using pipeline::PipelineModule;
using pipeline::PipelineOptions;
using pipeline::Tensors;
using pipeline::TiedLayerSpec;
using test::run_ranks;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

std::shared_ptr<PipelineModule> make_model(const LayerList& layers, PipelineOptions options) {
  options.seed_layers = true;
  return std::make_shared<PipelineModule>(
      layers, [](const Tensors& outputs, const Tensors& targets) { return at::mse_loss(outputs.at(0), targets.at(0)); },
      options);
}

std::shared_ptr<Engine> make_engine(comm::World& world, const std::shared_ptr<PipelineModule>& model,
                                    const char* optimizer = R"({"type": "AdamW", "params": {"lr": 0.01}})") {
  InitializeOptions options;
  options.pipeline = model;
  const std::string text = concat(
      R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, "gradient_clipping":0, "optimizer": )",
      optimizer, "}");
  options.config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
  return initialize(world, options).engine;
}

data::Batch sample_rows(int number) {
  const at::Tensor x = torch::linspace(-1, 1, 12).view({3, 4}) * (1 + number % 4);
  return {{x}, {x.sum(1, true)}, 3};
}

// What the ranks say of three micro-batches that make() gives to a stage.
std::vector<std::string> said(int stages, int replicas, const std::function<data::Batch(int stage, int number)>& make,
                              bool evaluates = false) {
  return run_ranks(stages * replicas, [&](comm::World& world) {
    PipelineOptions options;
    options.stages = stages;
    const auto engine = make_engine(
        world,
        make_model(LayerList{LayerSpec<nn::Linear>(4, 4), LayerSpec<nn::Linear>(4, 4), LayerSpec<nn::Linear>(4, 1)},
                   options));
    const int stage = world.rank() / replicas;
    int number = 0;
    const auto next = [&] { return make(stage, number++); };
    for (int step = 0; step < 2; ++step) {
      if (evaluates) {
        engine->eval_batch(next());
        engine->eval_batch(next());
      } else {
        engine->train_batch(next);
      }
    }
  });
}

TEST(PipelineSamplesTest, StagesThatReadOtherSamplesAreToldWithoutAFingerprint) {
  const auto shifted = [](int stage, int number) { return sample_rows(number + (stage > 0 && number == 3 ? 1 : 0)); };
  EXPECT_THAT(said(2, 1, shifted), Contains(AllOf(HasSubstr("micro-batch 1: the first stage (rank 0)"),
                                                  HasSubstr("other samples"), HasSubstr("the last stage (rank 1)"))));
  EXPECT_THAT(said(2, 1, shifted, /*evaluates=*/true),
              Contains(AllOf(HasSubstr("micro-batch 0: the first stage (rank 0)"), HasSubstr("other samples"))));
  EXPECT_THAT(said(3, 1, shifted),
              Contains(AllOf(HasSubstr("the first stage (rank 0)"), HasSubstr("the last stage (rank 2)"))));
  EXPECT_THAT(said(2, 2, shifted),
              Contains(AllOf(HasSubstr("the first stage (rank 1)"), HasSubstr("the last stage (rank 3)"))));
}

TEST(PipelineSamplesTest, WhatBothStagesGaveIsCompared) {
  const auto only_own_part = [](int stage, int number) {
    data::Batch batch = sample_rows(number);
    (stage == 0 ? batch.targets : batch.inputs).clear();
    return batch;
  };
  EXPECT_THAT(said(2, 1, only_own_part), IsEmpty()) << "there is nothing to compare";
  const auto without_inputs = [](int stage, int number) {
    data::Batch batch = sample_rows(number + stage);
    if (stage == 1) {
      batch.inputs = {at::Tensor()};
    }
    return batch;
  };
  EXPECT_THAT(said(2, 1, without_inputs), Contains(HasSubstr("other samples"))) << "the targets";
  const auto random_inputs = [](int stage, int number) {
    data::Batch batch = sample_rows(number);
    batch.inputs[0] = batch.inputs[0] + 0.01 * stage;
    return batch;
  };
  EXPECT_THAT(said(2, 1, random_inputs), Contains(HasSubstr("set Batch::fingerprint where that may differ")));
  const auto with_names = [&](int stage, int number) {
    data::Batch batch = random_inputs(stage, number);
    batch.fingerprint = 1 + number;
    return batch;
  };
  EXPECT_THAT(said(2, 1, with_names), IsEmpty()) << "the program says that they are the same";
  const auto one_has_names = [&](int stage, int number) {
    return stage == 0 ? with_names(stage, number) : sample_rows(number);
  };
  EXPECT_THAT(said(2, 1, one_has_names), IsEmpty()) << "a name is not compared with contents";
}

TEST(PipelineSamplesTest, AFingerprintIsOfTypeShapeAndEveryByte) {
  std::vector<at::Tensor> all;
  for (const int64_t numel : {0, 1, 7, 8, 31, 32, 33, 64, 1000}) {
    all.push_back(torch::zeros({numel}, torch::kByte));
    for (int64_t i = 0; i < std::min<int64_t>(numel, 70); ++i) {
      all.push_back(torch::zeros({numel}, torch::kByte));
      all.back()[numel - 1 - i] = 1;
    }
  }
  all.push_back(torch::zeros({4, 8}, torch::kByte));
  all.push_back(torch::zeros({8, 4}, torch::kByte));
  all.push_back(torch::zeros({4}, torch::kFloat));
  all.push_back(torch::zeros({4}, torch::kInt));
  std::set<uint64_t> found;
  for (const at::Tensor& tensor : all) {
    data::Batch batch{{tensor}, {tensor}, 1};
    data::identify(batch);
    EXPECT_EQ(batch.fingerprint >> 32, batch.fingerprint & 0xffffffffu);
    found.insert(batch.fingerprint);
  }
  EXPECT_EQ(found.size(), all.size());
  const at::Tensor matrix = torch::arange(12).view({3, 4});
  data::Batch strided{{matrix.t()}, {}, 1}, plain{{matrix.t().contiguous()}, {}, 1};
  data::identify(strided);
  data::identify(plain);
  EXPECT_EQ(strided.fingerprint, plain.fingerprint);
  EXPECT_EQ(plain.fingerprint & 0xffffffffu, 0u) << "no targets";
}

/// Uses its layer only while the test says so.
struct SometimesImpl : nn::Module {
  SometimesImpl() : linear(register_module("linear", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return uses ? x + linear(x).tanh() : x * 1.5; }
  nn::Linear linear;
  inline static bool uses = true;
};
TORCH_MODULE(Sometimes);

// With momentum and weight decay a step without a gradient would move it.
TEST(PipelineSamplesTest, ATiedParameterThatNobodyUsedIsNotStepped) {
  const auto linear = [] { return LayerSpec<nn::Linear>(4, 4); };
  const auto tied = [] { return TiedLayerSpec<Sometimes>("t"); };
  const LayerList layers{tied(), linear(), tied(), LayerSpec<nn::Linear>(4, 1)};
  for (const int stages : {1, 2}) {
    EXPECT_THAT(
        run_ranks(
            stages,
            [&](comm::World& world) {
              PipelineOptions options;
              options.stages = stages;
              if (stages == 2) {
                options.bounds = {0, 2, 4};
              }
              const auto model = make_model(layers, options);
              const auto engine = make_engine(
                  world, model, R"({"type": "SGD", "params": {"lr": 0.002, "momentum": 0.9, "weight_decay": 0.1}})");
              torch::manual_seed(1234);
              Sometimes shared;
              torch::manual_seed(1235);
              nn::Linear middle(4, 4);
              torch::manual_seed(1237);
              nn::Linear last(4, 1);
              std::vector<at::Tensor> parameters = shared->parameters();
              for (const nn::Linear& one : {middle, last}) {
                const auto own = one->parameters();
                parameters.insert(parameters.end(), own.begin(), own.end());
              }
              torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.002).momentum(0.9).weight_decay(0.1));
              int number = 0, number_here = 0;
              for (int step = 0; step < 5; ++step) {
                SometimesImpl::uses = step % 2 == 0;
                const double loss = engine->train_batch([&] { return sample_rows(number++); }).item<double>();
                optimizer.zero_grad();
                double expected = 0;
                for (int m = 0; m < 2; ++m) {
                  const data::Batch batch = sample_rows(number_here++);
                  const at::Tensor half = at::mse_loss(last(shared(middle(shared(batch.input())))), batch.target()) / 2;
                  half.backward();
                  expected += half.item<double>();
                }
                optimizer.step();
                EXPECT_NEAR(loss, expected, 1e-5 * expected) << "step " << step;
              }
            }),
        IsEmpty())
        << stages << " stages";
  }
}

} // namespace
} // namespace trireme::engine
