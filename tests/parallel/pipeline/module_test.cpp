#include <trireme/parallel/pipeline/module.h>

#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/ties.h>

#include <tests/support/run_ranks.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <gmock/gmock.h>

namespace trireme::pipeline {
namespace {

namespace nn = torch::nn;
using testing::ElementsAre;
using testing::HasSubstr;

template <typename F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> names(const nn::Module& module) {
  return module.named_parameters().keys();
}

TEST(PipelineModuleTest, IsTheSequentialItIsMadeFrom) {
  torch::manual_seed(3);
  nn::Sequential net(nn::Linear(4, 8), nn::ReLU(nn::ReLUOptions(true)), nn::Linear(8, 2));
  PipelineModule model{LayerList(net)};
  const at::Tensor x = torch::randn({3, 4});
  EXPECT_TRUE(model.forward(x).equal(net->forward(x)));
  EXPECT_THAT(names(model), ElementsAre("0.weight", "0.bias", "2.weight", "2.bias"));
}

struct StackImpl : nn::SequentialImpl {
  explicit StackImpl(int64_t width) {
    note = register_module("note", nn::Linear(1, 1)); // beside the sequence
    push_back("first", nn::Linear(4, width));
    push_back(nn::ReLU());
    push_back("last", nn::Linear(width, 2));
  }
  nn::Linear note{nullptr};
};
TORCH_MODULE(Stack);

struct DoublingStackImpl : StackImpl {
  using StackImpl::StackImpl;
  at::Tensor forward(const at::Tensor& x) { return 2 * StackImpl::forward(x); }
};
TORCH_MODULE(DoublingStack);

struct GenericStackImpl : StackImpl {
  using StackImpl::StackImpl;
  template <typename Result = at::Tensor, typename T>
  Result forward(T&& x) {
    return 3 * StackImpl::forward(std::forward<T>(x));
  }
};
TORCH_MODULE(GenericStack);

// A class without a forward() of its own is the list of its layers; one that has one does something with what they
// return.
TEST(PipelineModuleTest, ClassesThatDeriveFromSequential) {
  const at::Tensor x = torch::randn({3, 4});
  Stack stack(8);
  EXPECT_EQ(LayerList(stack).size(), 3);
  EXPECT_EQ(LayerList(stack.ptr()).size(), 3);
  EXPECT_EQ(LayerList(LayerList{nn::Linear(4, 4), stack}).size(), 4);
  PipelineModule model{LayerList(stack)};
  EXPECT_TRUE(model.forward(x).equal(stack->forward(x)));
  EXPECT_THAT(names(model), ElementsAre("first.weight", "first.bias", "last.weight", "last.bias"));

  DoublingStack doubling(8);
  GenericStack generic(8);
  EXPECT_EQ(LayerList(doubling).size(), 1);
  EXPECT_EQ(LayerList(doubling.ptr()).size(), 1);
  EXPECT_EQ(LayerList(generic).size(), 1);
  PipelineModule doubled{LayerList(doubling)}, tripled{LayerList(generic)};
  EXPECT_TRUE(doubled.forward(x).equal(doubling->forward(x)));
  EXPECT_TRUE(tripled.forward(x).equal(generic->forward(x)));
}

TEST(PipelineModuleTest, NestedListsLambdasAndNames) {
  PipelineModule model(LayerList{LayerSpec<nn::Linear>(4, 4),
                                 LayerList{nn::ReLU(), [](const at::Tensor& x) { return x * 2; }},
                                 Layer(LayerSpec<nn::Linear>(4, 3)).name("head.out")});
  model.build();
  EXPECT_THAT(names(model), ElementsAre("0.weight", "0.bias", "head.out.weight", "head.out.bias"));
  EXPECT_EQ(model.layers().size(), 4);
  EXPECT_THAT(model.describe(), testing::AllOf(HasSubstr("Linear"), HasSubstr("function"), HasSubstr("head.out")));
}

TEST(PipelineModuleTest, TrainingAndEvaluationReachEveryLayer) {
  PipelineModule model(LayerList{LayerSpec<nn::Dropout>(0.5)});
  model.build();
  const at::Tensor x = torch::ones({100});
  model.eval();
  EXPECT_TRUE(model.forward(x).equal(x));
  model.train();
  EXPECT_FALSE(model.forward(x).equal(x));
}

TEST(PipelineModuleTest, SeveralTensorsPassMasksAlong) {
  struct Masked : nn::Module {
    std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& mask) {
      return {x.masked_fill(mask, 0), mask};
    }
  };
  PipelineModule model(LayerList{LayerSpec<Masked>(), LayerSpec<Masked>(),
                                 [](const at::Tensor& x, const at::Tensor& mask) { return x + mask.sum(); }});
  const at::Tensor mask = torch::tensor({true, false, false});
  const Tensors y = model.forward(Tensors{torch::ones({3}), mask});
  ASSERT_EQ(y.size(), 1u);
  EXPECT_TRUE(y[0].equal(torch::tensor({1.0f, 2.0f, 2.0f})));
}

TEST(PipelineModuleTest, TiedLayersShareOneModuleWithinAStage) {
  const TiedLayerSpec<nn::Embedding> words("words", 10, 4);
  auto head = words;
  head.forward_fn([](nn::Embedding& embedding, const at::Tensor& x) { return at::linear(x, embedding->weight); });
  PipelineModule model(LayerList{words, LayerSpec<nn::Linear>(4, 4), head});
  model.build();
  EXPECT_THAT(names(model), ElementsAre("0.weight", "1.weight", "1.bias"));
  EXPECT_EQ(model.late_parameters().size(), 1u);
  EXPECT_EQ(model.forward(torch::arange(3)).sizes(), at::IntArrayRef({3, 10}));
}

// Only the weight is shared: each layer has a bias of its own, also where both are on one stage.
TEST(PipelineModuleTest, AttributesTiedByNameLeaveTheOthersAlone) {
  const auto linear = [] { return TiedLayerSpec<nn::Linear>("weight", 4, 4).attributes({"weight"}); };
  PipelineModule model(LayerList{linear(), nn::ReLU(), linear()});
  model.build();
  EXPECT_THAT(names(model), ElementsAre("0.weight", "0.bias", "2.weight", "2.bias"));
  ASSERT_EQ(model.ties().size(), 1u);
  EXPECT_EQ(model.ties()[0].copies.size(), 2u);
  EXPECT_EQ(model.saved_name("2.weight"), "0.weight");
  EXPECT_EQ(model.saved_name("2.bias"), "2.bias");
}

TEST(PipelineModuleTest, RecomputationInOneProcessGivesTheSameGradients) {
  const auto grads = [](int64_t interval) {
    PipelineOptions options;
    options.seed_layers = true;
    options.activation_checkpoint_interval = interval;
    PipelineModule model(
        LayerList{LayerSpec<nn::Linear>(4, 6), nn::Tanh(), nn::Dropout(0.3), LayerSpec<nn::Linear>(6, 2)}, nullptr,
        options);
    torch::manual_seed(9);
    model.forward(torch::ones({5, 4})).sum().backward();
    Tensors all;
    for (const at::Tensor& parameter : model.parameters()) {
      all.push_back(parameter.grad());
    }
    return all;
  };
  const Tensors kept = grads(0);
  for (const int64_t interval : {1, 2, 4}) {
    const Tensors again = grads(interval);
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_TRUE(kept[i].equal(again[i])) << "interval " << interval << " parameter " << i;
    }
  }
}

// The last layer and the loss in one are the loss of its outputs, also where layers are recomputed.
TEST(PipelineModuleTest, ALossMayReplaceTheLastLayer) {
  const Tensors inputs{torch::ones({5, 4})}, targets{torch::full({5, 2}, 0.5)};
  const auto of_outputs = [](const Tensors& outputs, const Tensors& wanted) {
    return (outputs.at(0) - wanted.at(0)).square().mean();
  };
  int in_one = 0;
  const auto with_last_layer = [&](const std::shared_ptr<nn::Module>& module, const Tensors& x, const Tensors& wanted) {
    auto* const last = dynamic_cast<nn::LinearImpl*>(module.get());
    ++in_one;
    return last == nullptr ? at::Tensor()
                           : (at::linear(x.at(0), last->weight, last->bias) - wanted.at(0)).square().mean();
  };
  for (const bool ends_in_linear : {true, false}) {
    const auto step = [&](const Loss& loss, int64_t interval) {
      PipelineOptions options;
      options.activation_checkpoint_interval = interval;
      const Layer last = ends_in_linear ? Layer(LayerSpec<nn::Linear>(6, 2)) : Layer(nn::Flatten());
      torch::manual_seed(9);
      PipelineModule model(LayerList{LayerSpec<nn::Linear>(4, ends_in_linear ? 6 : 2), nn::Tanh(), last}, loss,
                           options);
      model.build();
      Tensors all{model.forward_to_loss(0, inputs, 0, targets)};
      all[0].backward();
      for (const at::Tensor& parameter : model.parameters()) {
        all.push_back(parameter.grad());
      }
      return all;
    };
    const Tensors expected = step(of_outputs, 0);
    for (const int64_t interval : {0, 1, 2, 3}) {
      in_one = 0;
      const Tensors found = step(Loss(of_outputs, with_last_layer), interval);
      const bool again = interval == 3 || (interval > 0 && ends_in_linear); // a Flatten alone keeps nothing
      EXPECT_EQ(in_one, again ? 2 : 1);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(found[i].equal(expected[i])) << "interval " << interval << ", tensor " << i;
      }
    }
  }
}

// A layer draws what no other layer draws, nor itself in another micro-batch, whatever the seed.
TEST(PipelineModuleTest, SeededLayersDrawNothingTwice) {
  PipelineOptions options;
  options.seed_layers = true;
  std::vector<at::Tensor> masks;
  const auto keep = [&masks](const at::Tensor& x) {
    masks.push_back(x.clone());
    return torch::ones_like(x); // the next layer's input
  };
  for (const int64_t seed : {0, 1, 2, 1234}) {
    options.base_seed = seed;
    PipelineModule model(LayerList{LayerSpec<nn::Dropout>(0.5), keep, LayerSpec<nn::Dropout>(0.5), keep,
                                   LayerSpec<nn::Dropout>(0.5), keep},
                         nullptr, options);
    model.build();
    for (int64_t micro_batch = 0; micro_batch < 4; ++micro_batch) {
      model.forward_chunk(0, {torch::ones({64})}, micro_batch);
    }
  }
  ASSERT_EQ(masks.size(), 48u);
  for (size_t i = 0; i < masks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(masks[i].equal(masks[j])) << j << " and " << i;
    }
  }
}

// The second forward leaves no trace in BatchNorm's statistics.
TEST(PipelineModuleTest, RecomputationKeepsTheStatisticsOfOneForward) {
  const auto buffers = [](int64_t interval) {
    PipelineOptions options;
    options.seed_layers = true;
    options.activation_checkpoint_interval = interval;
    PipelineModule model(
        LayerList{LayerSpec<nn::Linear>(4, 6), LayerSpec<nn::BatchNorm1d>(6), nn::Tanh(), LayerSpec<nn::Linear>(6, 2)},
        nullptr, options);
    for (int step = 0; step < 3; ++step) {
      model.forward(torch::sin(torch::arange(20, torch::kFloat32).view({5, 4}) + step)).sum().backward();
    }
    return model.buffers();
  };
  const Tensors kept = buffers(0);
  ASSERT_EQ(kept.size(), 3u);
  for (const int64_t interval : {1, 3}) {
    const Tensors again = buffers(interval);
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_TRUE(kept[i].equal(again[i])) << "interval " << interval << " buffer " << i;
    }
  }
}

// A copy that has no gradient of its own gets the others' sum as exact as they do.
TEST(TiesTest, CopiesWithoutAGradientGetTheSameSum) {
  test::on_ranks(1, [](comm::World& world) {
    const auto linear = [] { return TiedLayerSpec<nn::Linear>("weight", 4, 4).attributes({"weight"}); };
    PipelineModule model(LayerList{linear(), nn::ReLU(), linear()});
    model.build();
    model.to(torch::kBFloat16);
    const Ties ties(world.group(), model);
    const at::Tensor exact = torch::full({4, 4}, 1.00390625F); // between two of bf16
    ASSERT_EQ(model.ties().size(), 1u);
    const Tensors& copies = model.ties()[0].copies;
    ASSERT_EQ(copies.size(), 2u);
    copies[0].mutable_grad() = exact.clone();
    ties.sum_gradients();
    for (const at::Tensor& copy : copies) {
      EXPECT_TRUE(copy.grad().to(torch::kFloat32).equal(exact));
    }
  });
}

TEST(PipelineModuleTest, ErrorsSayWhichLayerAndWhatItGot) {
  EXPECT_THAT(message_of([] { PipelineModule{LayerList()}; }), HasSubstr("empty"));
  EXPECT_THAT(
      message_of([] {
        PipelineModule model(LayerList{LayerSpec<nn::Linear>(4, 4), LayerSpec<nn::Linear>(5, 2)});
        model.forward(torch::ones({3, 4}));
      }),
      testing::AllOf(HasSubstr("layer 1 (Linear, stage 0 of 1)"), HasSubstr("[3, 4]"), HasSubstr("layer 0 (Linear")));
  EXPECT_THAT(message_of([] {
                PipelineModule model(LayerList{[](const at::Tensor&) { return Tensors(); }});
                model.forward(torch::ones({3}));
              }),
              testing::AllOf(HasSubstr("layer 0"), HasSubstr("returned nothing")));
  EXPECT_THAT(message_of([] {
                PipelineOptions options;
                options.partition = "type:Transformer";
                PipelineModule(LayerList{nn::ReLU()}, nullptr, options).build();
              }),
              HasSubstr("Transformer"));
  EXPECT_THAT(message_of([] {
                PipelineOptions options;
                options.bounds = {0, 2, 1};
                PipelineModule(LayerList{nn::ReLU()}, nullptr, options).build();
              }),
              HasSubstr("[0, 2, 1]"));
  EXPECT_THAT(message_of([] {
                PipelineOptions options;
                options.partition = "profile";
                PipelineModule(LayerList{nn::ReLU()}, nullptr, options).build();
              }),
              HasSubstr("set_sample_inputs"));
  EXPECT_THAT(message_of([] {
                PipelineModule model(LayerList{Layer(nn::Linear(2, 2)).name("a"), Layer(nn::Linear(2, 2)).name("a")});
              }),
              HasSubstr("\"a\""));
}

TEST(PipelineModuleTest, ProfileMeasuresEveryLayer) {
  PipelineOptions options;
  options.partition = "profile";
  PipelineModule model(LayerList{LayerSpec<nn::Linear>(8, 8), nn::ReLU(), LayerSpec<nn::Linear>(8, 8)}, nullptr,
                       options);
  model.set_sample_inputs({torch::ones({4, 8})});
  model.build();
  ASSERT_EQ(model.partition().costs.size(), 3u);
  for (const double cost : model.partition().costs) {
    EXPECT_GT(cost, 0);
  }
}

TEST(PipelineModuleTest, ProfileLeavesGivenLayersAsTheyAre) {
  PipelineOptions options;
  options.partition = "profile";
  const nn::Linear linear(8, 8);
  const nn::BatchNorm1d norm(8);
  linear->weight.mutable_grad() = torch::full({8, 8}, 3.0);
  const at::Tensor inputs = torch::randn({4, 8});
  const at::Tensor before = inputs.clone();
  PipelineModule model(LayerList{nn::ReLU(nn::ReLUOptions(true)), linear, norm, nn::ReLU(nn::ReLUOptions(true))},
                       nullptr, options);
  model.set_sample_inputs({inputs});
  model.build();
  EXPECT_EQ(model.partition().costs.size(), 4u);
  EXPECT_TRUE(inputs.equal(before));
  EXPECT_TRUE(norm->running_mean.equal(torch::zeros({8})));
  EXPECT_TRUE(norm->running_var.equal(torch::ones({8})));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
  EXPECT_TRUE(linear->weight.grad().equal(torch::full({8, 8}, 3.0)));
  EXPECT_FALSE(linear->bias.grad().defined());
}

// A list may hold modules that exist. Every rank has them all, but each stage trains its own.
TEST(PipelineModuleTest, GivenModulesShareWithinAStageOnly) {
  const nn::Linear shared(4, 4);
  PipelineModule together(LayerList{shared, nn::ReLU(), shared});
  together.build();
  test::on_ranks(2, [](comm::World& world) {
    const nn::Linear shared(4, 4);
    PipelineOptions two;
    two.stages = 2;
    two.bounds = {0, 2, 3};
    PipelineModule apart(LayerList{shared, nn::ReLU(), shared}, nullptr, two);
    EXPECT_THAT(message_of([&] { apart.build(world.group()); }),
                testing::AllOf(HasSubstr("layers 0 and 2"), HasSubstr("stages 0 and 1"), HasSubstr("TiedLayerSpec")));
  });
}

TEST(PipelineModuleTest, ATieBySharedMemoryIsRefusedByName) {
  nn::Linear first(4, 4);
  nn::Linear second(4, 4);
  second->weight.set_data(first->weight.detach());
  PipelineModule model(LayerList{first, nn::ReLU(), second});
  EXPECT_THAT(message_of([&] { model.build(); }),
              testing::AllOf(HasSubstr("\"0.weight\""), HasSubstr("\"2.weight\""), HasSubstr("share memory")));
}

} // namespace
} // namespace trireme::pipeline
