// engine.tensor_parallel with a model whose layers know nothing of ranks: losses and gradient norms are those of one
// process, at every ZeRO stage.
#include "split_run.h"

#include <tests/parallel/tensor/ordinary_models.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

test::TiedModel ordinary_model() {
  at::manual_seed(5);
  return test::TiedModel(31, 16, 4, 0);
}

std::function<at::Tensor(const data::Batch&)> ordinary_loss(test::TiedModel model) {
  return [model](const data::Batch& batch) mutable {
    return torch::nn::functional::cross_entropy(model->forward(batch.input()).flatten(0, 1), batch.target().flatten());
  };
}

// The engine makes the mesh.
void ordinary_build(const SplitLayout& layout, InitializeOptions& options) {
  const std::string text = concat(R"({"train_batch_size": 1, "tensor_parallel": {"autotp_size": )", layout.tensor,
                                  R"(, "tp_grain_size": 4, "partition_config": {"layer_specs": [
      {"patterns": [".*attention\\.[qkv]", ".*fc1"], "partition_type": "column"},
      {"patterns": [".*attention\\.out$", ".*fc2"], "partition_type": "row"},
      {"patterns": ["wte"], "partition_type": "vocabulary"}]}}})");
  options.config.tensor_parallel = config::read_deepspeed(JsonNode::parse(text, "test.json")).tensor_parallel;
  options.mesh.reset();
  const test::TiedModel model = ordinary_model();
  options.model = model.ptr();
  options.loss = ordinary_loss(model);
}

void expect_trained_alone(const SplitLayout& layout) {
  const auto body = [&](comm::World& world) {
    at::set_num_threads(1);
    test::TiedModel whole = ordinary_model();
    const Curve expected = plain_curve(*whole, ordinary_loss(whole), Counting(), kSplitBatch, kSplitSteps);
    SplitRun run(world, layout, ordinary_build);
    expect_curve(run, expected, /*norm_tolerance=*/1e-4);
  };
  EXPECT_THAT(run_ranks(layout.ranks(), body), IsEmpty()) << layout.describe();
}

TEST(OrdinarySplit, EqualsOneProcess) {
  expect_trained_alone({.tensor = 2});
  expect_trained_alone({.tensor = 3});
}

TEST(OrdinarySplit, EqualsOneProcessWithReplicasAtEveryZeroStage) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    expect_trained_alone({.data = 2, .tensor = 2, .zero_stage = zero_stage});
  }
}

TEST(OrdinarySplit, NamesARuleThatMatchesNothing) {
  on_ranks(2, [](comm::World& world) {
    const auto build = [](const SplitLayout& layout, InitializeOptions& options) {
      ordinary_build(layout, options);
      options.config.tensor_parallel.rules.push_back({tensor::SplitRule::Kind::row, ".*attention\\.outt$"});
    };
    EXPECT_THAT([&] { SplitRun(world, {.tensor = 2}, build); },
                ThrowsMessage<InputError>(
                    AllOf(HasSubstr("no parameter of the model matches"), HasSubstr("block.attention.out"))));
  });
}

/// Its activation has one number for all features, of which each rank sees a part.
struct ScaledImpl : torch::nn::Module {
  ScaledImpl()
      : fc1(register_module("fc1", torch::nn::Linear(8, 16))),
        act(register_module("act", torch::nn::PReLU())),
        fc2(register_module("fc2", torch::nn::Linear(16, 8))) {}
  at::Tensor forward(const at::Tensor& x) { return fc2->forward(act->forward(fc1->forward(x))); }
  torch::nn::Linear fc1;
  torch::nn::PReLU act;
  torch::nn::Linear fc2;
};
TORCH_MODULE(Scaled);

TEST(OrdinarySplit, WholeParametersOnSplitFeaturesAreFound) {
  on_ranks(2, [](comm::World& world) {
    torch::manual_seed(5);
    Scaled model;
    SplitRun run(world, {.tensor = 2}, [&](const SplitLayout& layout, InitializeOptions& options) {
      ordinary_build(layout, options);
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable {
        return model->forward(batch.input()).square().mean();
      };
      options.config.tensor_parallel.rules = {{.kind = tensor::SplitRule::Kind::column, .pattern = "fc1"},
                                              {.kind = tensor::SplitRule::Kind::row, .pattern = "fc2"}};
    });
    const at::Tensor x = torch::sin(torch::arange(kSplitBatch * 8).to(torch::kFloat32)).reshape({kSplitBatch, 8});
    EXPECT_THAT([&] { run.engine().train_batch([&] { return data::Batch{{x}, {x}, kSplitBatch}; }); },
                ThrowsMessage<InputError>(HasSubstr("the gradients of act.weight, which is not split, differ")));
  });
}

} // namespace
} // namespace trireme::engine
