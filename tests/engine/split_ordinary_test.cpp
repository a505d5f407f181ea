// engine.tensor_parallel with a model whose layers know nothing of ranks: losses and gradient norms are those of one process, at every ZeRO stage.
#include "small_run.h"

#include <tests/parallel/tensor/ordinary_models.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <numeric>

namespace trireme::engine {
namespace {

using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

constexpr int64_t kBatch = 8;
constexpr int kSteps = 10;

config::EngineConfig split_config(int size, int zero_stage) {
  const std::string text = concat(R"({"train_batch_size": )", kBatch, R"(, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": )", zero_stage,
                                  R"(}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    "tensor_parallel": {"autotp_size": )", size, R"(, "tp_grain_size": 4, "partition_config": {"layer_specs": [
      {"patterns": [".*attention\\.[qkv]", ".*fc1"], "partition_type": "column"},
      {"patterns": [".*attention\\.out$", ".*fc2"], "partition_type": "row"},
      {"patterns": ["wte"], "partition_type": "vocabulary"}]}}})");
  config::EngineConfig config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
  config.data_parallel.bucket_bytes = 4000;
  config.data_parallel.first_bucket_bytes = 1000;
  config.zero.param_persistence_threshold = 0;
  return config;
}

struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
};

Trained train(comm::World& world, const config::EngineConfig& config) {
  at::manual_seed(5);
  test::TiedModel model(31, 16, 4, 0);
  InitializeOptions options;
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable {
    return torch::nn::functional::cross_entropy(model->forward(batch.input()).flatten(0, 1), batch.target().flatten());
  };
  options.config = config;
  options.training_data = std::make_shared<Counting>();
  options.shuffle = false;
  const Initialized made = initialize(world, options);
  Trained out;
  for (int step = 0; step < kSteps; ++step) {
    out.losses.push_back(made.engine->train_batch().item<double>());
    out.norms.push_back(made.engine->get_global_grad_norm().value());
  }
  return out;
}

// The same with nothing but libtorch: one process, the whole model and batch.
Trained train_alone() {
  at::manual_seed(5);
  test::TiedModel model(31, 16, 4, 0);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(0.1));
  const Counting data;
  Trained out;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<int64_t> indices(kBatch);
    std::iota(indices.begin(), indices.end(), step * kBatch);
    const data::Batch batch = data.get(indices);
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(model->forward(batch.input()).flatten(0, 1), batch.target().flatten());
    loss.backward();
    out.losses.push_back(loss.item<double>());
    out.norms.push_back(torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0));
    optimizer.step();
  }
  return out;
}

void expect_trained_alone(int ranks, int tensor, int zero_stage) {
  SCOPED_TRACE(concat(ranks, " ranks, tensor ", tensor, ", ZeRO ", zero_stage));
  const auto body = [&](comm::World& world) {
    at::set_num_threads(1);
    const Trained whole = train_alone();
    const Trained split = train(world, split_config(tensor, zero_stage));
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(split.losses[step], whole.losses[step], 1e-5 * whole.losses[step]) << "step " << step;
      EXPECT_NEAR(split.norms[step], whole.norms[step], 1e-4 * whole.norms[step]) << "step " << step;
    }
  };
  EXPECT_THAT(run_ranks(ranks, body), IsEmpty());
}

TEST(OrdinarySplit, EqualsOneProcess) {
  expect_trained_alone(2, 2, 0);
  expect_trained_alone(3, 3, 0);
}

TEST(OrdinarySplit, EqualsOneProcessWithReplicasAtEveryZeroStage) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    expect_trained_alone(4, 2, zero_stage);
  }
}

TEST(OrdinarySplit, NamesARuleThatMatchesNothing) {
  EXPECT_THAT(run_ranks(2, [](comm::World& world) {
    config::EngineConfig config = split_config(2, 0);
    config.tensor_parallel.rules.push_back({tensor::SplitRule::Kind::row, ".*attention\\.outt$"});
    EXPECT_THAT([&] { train(world, config); }, ThrowsMessage<InputError>(AllOf(HasSubstr("no parameter of the model matches"), HasSubstr("block.attention.out"))));
  }), IsEmpty());
}

/// Its activation has one number for all features, of which each rank sees a part.
struct ScaledImpl : torch::nn::Module {
  ScaledImpl() : fc1(register_module("fc1", torch::nn::Linear(8, 16))), act(register_module("act", torch::nn::PReLU())), fc2(register_module("fc2", torch::nn::Linear(16, 8))) {}
  at::Tensor forward(const at::Tensor& x) {
    return fc2->forward(act->forward(fc1->forward(x)));
  }
  torch::nn::Linear fc1;
  torch::nn::PReLU act;
  torch::nn::Linear fc2;
};
TORCH_MODULE(Scaled);

TEST(OrdinarySplit, WholeParametersOnSplitFeaturesAreFound) {
  EXPECT_THAT(run_ranks(2,
                        [](comm::World& world) {
                          torch::manual_seed(5);
                          Scaled model;
                          InitializeOptions options;
                          options.model = model.ptr();
                          options.loss = [model](const data::Batch& batch) mutable { return model->forward(batch.input()).square().mean(); };
                          options.config = split_config(2, 0);
                          options.config.tensor_parallel.rules = {{.kind = tensor::SplitRule::Kind::column, .pattern = "fc1"}, {.kind = tensor::SplitRule::Kind::row, .pattern = "fc2"}};
                          const Initialized made = initialize(world, options);
                          const at::Tensor x = torch::sin(torch::arange(kBatch * 8).to(torch::kFloat32)).reshape({kBatch, 8});
                          EXPECT_THAT([&] { made.engine->train_batch([&] { return data::Batch{{x}, {x}, kBatch}; }); },
                                      ThrowsMessage<InputError>(HasSubstr("the gradients of act.weight, which every rank has whole, differ")));
                        }),
              IsEmpty());
}

} // namespace
} // namespace trireme::engine
