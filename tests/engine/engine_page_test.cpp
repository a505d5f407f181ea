// The code of docs/engine.md, line by line, in programs that run.
#include "small_run.h"

#include <trireme/data/from_torch.h>

#include <tests/support/page_code.h>

#include <gmock/gmock.h>
#include <torch/data/datasets/tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <unistd.h>
#include <filesystem>

namespace trireme::engine {
namespace {

struct HeadedNetImpl : torch::nn::Module {
  torch::nn::Linear body = register_module("body", torch::nn::Linear(6, 8));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8, 3));
  at::Tensor forward(const at::Tensor& x) { return head(body(x).relu()); }
};
TORCH_MODULE(HeadedNet);

class Points : public data::Dataset {
 public:
  int64_t size() const override { return 1000; }
  data::Batch get(std::span<const int64_t> indices) const override {
    std::vector<at::Tensor> inputs;
    for (const int64_t index : indices) {
      inputs.push_back(torch::arange(6).add(index).mul(0.1).sin().unsqueeze(0));
    }
    const at::Tensor x = torch::cat(inputs);
    return {{x}, {x.narrow(1, 0, 3).argmax(1)}, std::ssize(indices)};
  }
  std::string describe() const override { return "points"; }
};

TEST(EnginePageTest, GroupsSamplesAndLogits) {
  comm::World world = comm::World::connect();
  torch::manual_seed(1);
  HeadedNet model;
  const at::Tensor before = model->head->weight.detach().clone();
  InitializeOptions options;
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable -> LossAndLogits {
    const at::Tensor logits = model->forward(batch.input());
    return {torch::cross_entropy_loss(logits, batch.target()), {logits}};
  };
  options.config = small_config(8, 1);
  options.training_data = std::make_shared<Points>();
  options.parameter_groups = {
      {.parameters = model->head->parameters(), .lr_factor = 10},
      {.chooses = [](const std::string&, const std::vector<int64_t>& sizes) { return sizes.size() < 2; },
       .weight_decay = 0}, // biases, norms
  };
  options.order = [](int64_t epoch) {
    return data::permutation(1000, 17, epoch);
  }; // the numbers of an epoch's samples, the same on every rank
  options.collate = [](std::vector<data::Batch> samples) { return stacked(std::move(samples)); };
  const Initialized made = initialize(world, options);
  made.engine->train_batch();
  EXPECT_FALSE(model->head->weight.equal(before));
  const data::Batch batch = Points().get(std::vector<int64_t>{1, 2, 3});
  const LossAndLogits found = made.engine->eval_batch_with_logits(batch);
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(found.logits.at(0).equal(model->forward(batch.input())));
}

TEST(EnginePageTest, AnOptimizerOfLibtorch) {
  comm::World world = comm::World::connect();
  torch::manual_seed(1);
  HeadedNet model;
  InitializeOptions options;
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable {
    return torch::cross_entropy_loss(model->forward(batch.input()), batch.target());
  };
  options.config = small_config(8, 1);
  options.training_data = std::make_shared<Points>();
  options.config.optimizer.reset(); // instead of the configuration's
  options.optimizer =
      std::make_shared<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
  const Initialized made = initialize(world, options);
  made.engine->train_batch();
  EXPECT_EQ(made.engine->get_lr(), 1e-3);
}

// tests/engine/torch_programs_test.cpp compares it with torch.
TEST(EnginePageTest, ProgramsWithSeveralModels) {
  comm::World world = comm::World::connect();
  torch::nn::Linear maker(2, 3), judge(3, 1);
  const at::Tensor noise = torch::ones({8, 2}), real = torch::ones({8, 3});
  const auto engine_of = [&](const torch::nn::Linear& model, const LossFunction& loss) {
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = loss;
    options.config = small_config(8, 1);
    return initialize(world, options).engine;
  };
  const auto makes = engine_of(maker, [&](const data::Batch&) { return (judge(maker(noise)) - 1).square().mean(); });
  const auto judges = engine_of(judge, [&](const data::Batch&) {
    return (judge(real) - 1).square().mean() + judge(maker(noise).detach()).square().mean();
  });
  const auto next = [&] { return data::Batch{{noise}, {noise}, 8}; };
  judges->train_batch(next); // (judge(real) - 1)^2 + judge(maker(noise).detach())^2
  const at::Tensor judged = judge->weight.detach().clone();
  makes->train_batch(next); // (judge(maker(noise)) - 1)^2: what it gives the judge is dropped
  EXPECT_TRUE(judge->weight.equal(judged));
  EXPECT_FALSE(judge->weight.grad().defined());
}

TEST(EnginePageTest, ADataSetOfTorch) {
  comm::World world = comm::World::connect();
  HeadedNet model;
  const at::Tensor points = torch::ones({16, 6});
  InitializeOptions options;
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable { return model->forward(batch.input()).square().mean(); };
  options.config = small_config(8, 1);
  options.training_data = data::from_torch(torch::data::datasets::TensorDataset(points));
  const Initialized made = initialize(world, options);
  EXPECT_GT(made.engine->train_batch().item<double>(), 0);
}

// tests/engine/gathered_model_test.cpp has stages, shards and tensor ranks.
TEST(EnginePageTest, SavesAWholeModel) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / concat("trireme_engine_page_", ::getpid());
  std::filesystem::create_directories(folder);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  comm::World world = comm::World::connect();
  HeadedNet net;
  InitializeOptions options;
  options.model = net.ptr();
  options.loss = [net](const data::Batch& batch) mutable {
    return torch::cross_entropy_loss(net->forward(batch.input()), batch.target());
  };
  options.config = small_config(8, 1);
  const auto engine = initialize(world, options).engine;
  const std::shared_ptr<torch::nn::Module> whole = engine->gather_model(); // on every rank
  if (world.rank() == 0) {
    torch::save(whole, "model.pt");
  }
  HeadedNet loaded;
  torch::load(loaded, "model.pt");
  EXPECT_TRUE(loaded->head->weight.equal(net->head->weight));
  std::filesystem::current_path(before);
  std::filesystem::remove_all(folder);
}

TEST(EnginePageTest, ThePageShowsThisCode) {
  EXPECT_GE(test::code_lines_of("docs/engine.md", {"tests/engine/engine_page_test.cpp"}), 10);
}

} // namespace
} // namespace trireme::engine
