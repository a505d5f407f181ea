#include <trireme/memory/recompute/recompute.h>
#include <trireme/models/gpt.h>
#include <trireme/parallel/pipeline/split_backward.h>

#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <gmock/gmock.h>

namespace trireme::pipeline {
namespace {

using Part = std::function<Tensors(const Tensors&)>;

std::unordered_set<torch::autograd::Node*> accumulators(const torch::nn::Module& module) {
  std::unordered_set<torch::autograd::Node*> nodes;
  for (const at::Tensor& parameter : module.parameters()) {
    nodes.insert(torch::autograd::impl::grad_accumulator(parameter).get());
  }
  return nodes;
}

torch::autograd::edge_list edges(const Tensors& outputs) {
  torch::autograd::edge_list roots;
  for (const at::Tensor& output : outputs) {
    roots.push_back(torch::autograd::impl::gradient_edge(output));
  }
  return roots;
}

struct Result {
  Tensors inputs;
  std::map<std::string, at::Tensor> parameters;
};

Result grads_of(torch::nn::Module& module, const Tensors& inputs) {
  Result result;
  for (const at::Tensor& input : inputs) {
    result.inputs.push_back(input.grad().defined() ? input.grad().clone() : at::Tensor());
  }
  for (const auto& item : module.named_parameters()) {
    result.parameters[item.key()] = item.value().grad().defined() ? item.value().grad().clone() : at::Tensor();
    item.value().mutable_grad().reset();
  }
  return result;
}

// Both ways of differentiating `part`, on the same inputs; the halves must not touch each other's gradients.
void expect_same(torch::nn::Module& module, const Part& part, const std::vector<at::Tensor>& values, bool puts_off) {
  const auto leaves = [&] {
    Tensors inputs;
    for (const at::Tensor& value : values) {
      inputs.push_back(value.clone());
      if (value.is_floating_point()) {
        inputs.back().requires_grad_();
      }
    }
    return inputs;
  };
  const auto ones = [](const Tensors& outputs) {
    Tensors grads;
    for (const at::Tensor& output : outputs) {
      grads.push_back(torch::linspace(0.5, 1.5, output.numel()).view(output.sizes()));
    }
    return grads;
  };
  Tensors inputs = leaves();
  Tensors outputs = part(inputs);
  torch::autograd::backward(outputs, ones(outputs));
  const Result whole = grads_of(module, inputs);

  inputs = leaves();
  outputs = part(inputs);
  SplitBackward split(edges(outputs), ones(outputs), inputs, accumulators(module));
  outputs.clear();
  split.run_inputs();
  bool early = false;
  for (const at::Tensor& parameter : module.parameters()) {
    early = early || parameter.grad().defined();
  }
  EXPECT_EQ(early, !puts_off);
  split.run_weights();
  const Result halves = grads_of(module, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(whole.inputs[i].defined(), halves.inputs[i].defined());
    EXPECT_TRUE(!whole.inputs[i].defined() || whole.inputs[i].equal(halves.inputs[i])) << "input " << i;
  }
  for (const auto& [name, grad] : whole.parameters) {
    ASSERT_TRUE(halves.parameters.at(name).defined()) << name;
    EXPECT_TRUE(grad.equal(halves.parameters.at(name))) << name;
  }
}

models::GptOptions small() {
  models::GptOptions options;
  options.hidden = 16;
  options.heads = 2;
  options.sequence_length = 8;
  return options;
}

TEST(SplitBackwardTest, EqualsOneBackwardForTransformerBlocks) {
  torch::manual_seed(1);
  torch::nn::Sequential blocks;
  for (int i = 0; i < 2; ++i) {
    blocks->push_back(models::GptBlock(small()));
  }
  expect_same(
      *blocks, [&](const Tensors& x) { return Tensors{blocks->forward(x[0])}; }, {torch::randn({2, 8, 16})}, true);
}

TEST(SplitBackwardTest, EqualsOneBackwardForConvolutionsAndNorms) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                            torch::nn::Flatten(), torch::nn::Linear(144, 5));
  expect_same(*net, [&](const Tensors& x) { return Tensors{net->forward(x[0])}; }, {torch::randn({2, 3, 8, 8})}, true);
}

TEST(SplitBackwardTest, TwoInputsAndTwoOutputs) {
  torch::manual_seed(1);
  torch::nn::Linear first(4, 4);
  torch::nn::Linear second(4, 4);
  torch::nn::Sequential both(first, second);
  expect_same(
      *both, [&](const Tensors& x) { return Tensors{first->forward(x[0]) * x[1], second->forward(x[1])}; },
      {torch::randn({2, 4}), torch::randn({2, 4})}, true);
}

TEST(SplitBackwardTest, AParameterUsedTwiceIsDoneAtOnce) {
  torch::manual_seed(1);
  torch::nn::Linear shared(4, 4);
  expect_same(
      *shared, [&](const Tensors& x) { return Tensors{shared->forward(torch::relu(shared->forward(x[0])))}; },
      {torch::randn({2, 4})}, false);
}

TEST(SplitBackwardTest, WithoutAnInputToDifferentiateEverythingIsDoneAtOnce) {
  torch::manual_seed(1);
  torch::nn::Embedding embedding(10, 4);
  expect_same(
      *embedding, [&](const Tensors& x) { return Tensors{embedding->forward(x[0])}; }, {torch::arange(6)}, false);
}

TEST(SplitBackwardTest, RecomputedPartsDoTheirWorkWithTheInputs) {
  torch::manual_seed(1);
  torch::nn::Linear first(4, 4);
  torch::nn::Linear second(4, 4);
  torch::nn::Sequential both(first, second);
  expect_same(
      *both,
      [&](const Tensors& x) {
        return Tensors{second->forward(
            recompute::run([&](const Tensors& y) { return Tensors{torch::tanh(first->forward(y[0]))}; }, x)[0])};
      },
      {torch::randn({2, 4})}, false);
}

} // namespace
} // namespace trireme::pipeline
