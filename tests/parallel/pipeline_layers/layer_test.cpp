#include <trireme/parallel/pipeline/layer.h>

#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/count_parameters.h>

#include <sys/resource.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/nn/pimpl.h>
#include <torch/utils.h>

#include "refusal.h"

#include <gmock/gmock.h>

namespace trireme::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tensors run(const Layer& layer, const Tensors& inputs) {
  return layer.build().forward(inputs);
}

at::Tensor ones(int64_t n = 2) {
  return torch::ones({n});
}

// Hidden states with a mask, as transformer blocks pass them on.
struct MaskedImpl : torch::nn::Module {
  explicit MaskedImpl(int64_t width) { linear = register_module("linear", torch::nn::Linear(width, width)); }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& mask) {
    return {linear(x).masked_fill(mask, 0), mask};
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Masked);

struct ListedImpl : torch::nn::Module {
  Tensors forward(const Tensors& x) { return {x.back(), x.front()}; }
};
TORCH_MODULE(Listed);

struct PickyImpl : torch::nn::Module { // its constructor looks at values
  explicit PickyImpl(int64_t width) {
    weight = register_parameter("weight", torch::full({width}, 3.0));
    extra = register_parameter("extra", torch::zeros({static_cast<int64_t>(weight[0].item<float>())}));
  }
  at::Tensor forward(const at::Tensor& x) { return x + weight; }
  at::Tensor weight, extra;
};

TEST(LayerTest, AnyCallable) {
  EXPECT_EQ(run([](at::Tensor x) { return x * 2; }, {ones()})[0][0].item<float>(), 2);
  EXPECT_EQ(run([](const at::Tensor& x, const at::Tensor& y) { return x + y; }, {ones(), ones()})[0][0].item<float>(),
            2);
  EXPECT_EQ(run([](const Tensors& x) { return x; }, {ones(), ones(), ones()}).size(), 3u);
  EXPECT_EQ(run([](at::TensorList x) { return torch::stack(x); }, {ones(), ones(), ones()}).size(), 1u);
  EXPECT_EQ(run([](auto x) { return x * 2; }, {ones()}).size(), 1u);
  EXPECT_EQ(run([](at::Tensor x) { return std::make_pair(x, x); }, {ones()}).size(), 2u);
  EXPECT_EQ(run([](at::Tensor x) { return std::make_tuple(x, Tensors{x, x}, std::make_tuple(x)); }, {ones()}).size(),
            4u);
  using T = at::Tensor;
  const auto eight = [](T a, T, T, T, T, T, T, T h) { return a + h; };
  EXPECT_EQ(run(eight, Tensors(8, ones())).size(), 1u);
  EXPECT_EQ(run(std::function<at::Tensor(at::Tensor)>([](at::Tensor x) { return x; }), {ones()}).size(), 1u);
  at::Tensor (*const function)(const at::Tensor&) = &at::relu;
  EXPECT_EQ(run(function, {ones()}).size(), 1u);
  EXPECT_EQ(Layer(function).type(), "function");
  EXPECT_EQ(Layer(function).trainable_parameters(), 0);
}

TEST(LayerTest, ACallableKeepsItsStateInAllCopies) {
  const Layer counter([n = 0](const at::Tensor& x) mutable { return x + ++n; });
  const Layer copy = counter;
  run(counter, {ones()});
  EXPECT_EQ(run(copy, {ones()})[0][0].item<float>(), 3);
}

TEST(LayerTest, ModulesInEveryForm) {
  const torch::nn::Linear linear(2, 3);
  for (const Layer& layer :
       {Layer(linear), Layer(linear.ptr()), Layer(torch::nn::AnyModule(linear)), Layer(torch::nn::LinearImpl(2, 3))}) {
    EXPECT_EQ(layer.type(), "Linear");
    EXPECT_FALSE(layer.is_lazy());
    EXPECT_EQ(layer.trainable_parameters(), 9);
    EXPECT_EQ(run(layer, {torch::ones({4, 2})})[0].size(1), 3);
  }
  EXPECT_EQ(Layer(linear).build().module, linear.ptr());
  EXPECT_EQ(Layer(torch::nn::AnyModule(linear)).build().module, linear.ptr());
}

TEST(LayerTest, ModulesOfSeveralTensors) {
  const at::Tensor x = torch::ones({3, 4});
  const at::Tensor mask = torch::ones({3, 4}, torch::kBool);
  for (const Layer& layer : {Layer(Masked(4)), Layer(torch::nn::AnyModule(Masked(4))), Layer(LayerSpec<Masked>(4))}) {
    const Tensors out = run(layer, {x, mask});
    ASSERT_EQ(out.size(), 2u);
    EXPECT_EQ(out[0].abs().max().item<float>(), 0);
    EXPECT_EQ(out[1].scalar_type(), torch::kBool);
  }
  for (const Layer& layer : {Layer(Listed()), Layer(torch::nn::AnyModule(Listed()))}) {
    const Forward forward = layer.build().forward;
    EXPECT_TRUE(forward({x, mask})[0].is_same(mask));
    EXPECT_TRUE(forward({x, mask})[1].is_same(x));
  }
  EXPECT_EQ(
      run(LayerSpec<torch::nn::MultiheadAttention>(4, 2), {x.unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1)}).size(), 2u);
  EXPECT_EQ(run(LayerSpec<torch::nn::LSTM>(4, 5), {x.unsqueeze(1)}).size(), 3u);
}

TEST(LayerTest, LayerSpecBuildsLateAndAnew) {
  const LayerSpec<torch::nn::Conv2d> spec(torch::nn::Conv2dOptions(3, 4, 2).stride(2).bias(false));
  EXPECT_TRUE(spec.is_lazy());
  EXPECT_EQ(spec.type(), "Conv2d");
  EXPECT_EQ(spec.trainable_parameters(), 48);
  const BuiltLayer first = spec.build();
  EXPECT_NE(first.module, spec.build().module);
  EXPECT_EQ(first.forward({torch::ones({1, 3, 4, 4})})[0].size(2), 2);
  EXPECT_EQ(LayerSpec<MaskedImpl>(4).type(), "Masked");
}

TEST(LayerTest, NamesAndInitialisation) {
  Layer layer = LayerSpec<torch::nn::Linear>(2, 2).name("head").initialise([](torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters()) {
      at::Tensor(parameter).fill_(7);
    }
  });
  EXPECT_EQ(layer.name(), "head");
  EXPECT_EQ(layer.build().module->parameters()[0][0][0].item<float>(), 7);
  Layer copy = layer;
  copy.name("other");
  EXPECT_EQ(layer.name(), "head");
  EXPECT_FALSE(Layer(torch::nn::ReLU()).name().has_value());
  EXPECT_THAT(refusal([] { Layer([](at::Tensor x) { return x; }).initialise([](torch::nn::Module&) {}); }),
              HasSubstr("function layer"));
}

TEST(LayerTest, TiedLayersShareOneModule) {
  const TiedLayerSpec<torch::nn::Embedding> first("tokens", 5, 3);
  const Layer last = TiedLayerSpec<torch::nn::Embedding>("tokens", 5, 3)
                         .name("head")
                         .forward_fn([](torch::nn::Embedding& embedding, at::Tensor x) {
                           return torch::linear(x, embedding->weight);
                         });
  ASSERT_TRUE(last.tie().has_value());
  EXPECT_EQ(last.tie()->key, "tokens");
  EXPECT_TRUE(last.tie()->attributes.empty());
  const BuiltLayer built = first.build();
  const BuiltLayer shared = last.share(built.module);
  EXPECT_EQ(built.module, shared.module);
  const at::Tensor ids = torch::tensor({1, 4});
  const at::Tensor logits = shared.forward(built.forward({ids}))[0];
  EXPECT_EQ(logits.sizes(), (at::IntArrayRef{2, 5}));
  logits.sum().backward();
  EXPECT_EQ(built.module->parameters().size(), 1u);
  EXPECT_TRUE(built.module->parameters()[0].grad().defined());
  EXPECT_EQ(last.build().forward({torch::ones({2, 3})})[0].size(1), 5) << "alone on its stage";

  const TiedLayerSpec<torch::nn::Linear> spec("w", 2, 2);
  const auto of_module =
      TiedLayerSpec(spec).forward_fn([](torch::nn::LinearImpl& linear, at::Tensor x) { return x + linear.bias; });
  EXPECT_EQ(run(of_module, {ones()}).size(), 1u);
  const auto generic = TiedLayerSpec(spec).forward_fn([](auto& linear, at::Tensor x) { return x + linear->bias; });
  EXPECT_EQ(run(generic, {ones()}).size(), 1u);
}

TEST(LayerTest, TieErrors) {
  const auto some = TiedLayerSpec<torch::nn::Linear>("w", 2, 2).attributes({"weight"});
  EXPECT_THAT(some.tie()->attributes, ElementsAre("weight"));
  some.build();
  EXPECT_THAT(refusal([] { TiedLayerSpec<torch::nn::Linear>("w", 2, 2).attributes({"wieght"}).build(); }),
              HasSubstr("tie \"w\" names parameter \"wieght\", which Linear does not have. It has: weight, bias."));
  EXPECT_THAT(refusal([&] { some.share(torch::nn::Embedding(2, 2).ptr()); }),
              HasSubstr("of type Linear cannot share a module of another type: Embedding"));
}

TEST(LayerErrorTest, SayWhatTheLayerTakesAndWhatItGot) {
  const Tensors two = {torch::ones({4, 3}), torch::ones({4}, torch::kLong)};
  EXPECT_THAT(refusal([&] { run(LayerSpec<torch::nn::Linear>(3, 3), two); }),
              HasSubstr("Linear takes 1 tensor and got 2: [4, 3] float32, [4] int64"));
  EXPECT_THAT(refusal([&] { run(torch::nn::AnyModule(torch::nn::Linear(3, 3)), two); }),
              HasSubstr("Linear does not take 2 tensors ([4, 3] float32"));
  EXPECT_THAT(refusal([&] { run([](at::Tensor, at::Tensor b) { return b; }, {ones()}); }),
              HasSubstr("function takes 2 tensors and got 1: [2] float32"));
  EXPECT_THAT(refusal([&] { run([](at::Tensor) {}, {ones()}); }), HasSubstr("function returned nothing"));
  EXPECT_THAT(refusal([&] { run([](at::Tensor) { return Tensors{}; }, {ones()}); }),
              HasSubstr("function returned nothing"));
  EXPECT_THAT(refusal([&] { run([](at::Tensor x) { return Tensors{x, {}}; }, {ones()}); }),
              HasSubstr("undefined tensor as number 1"));
  EXPECT_THAT(refusal([&] { Layer(torch::nn::Linear(nullptr)); }), HasSubstr("empty module holder"));
  EXPECT_THAT(refusal([&] { Layer(std::shared_ptr<torch::nn::LinearImpl>()); }), HasSubstr("empty module holder"));
  EXPECT_THROW(run(torch::nn::AnyModule(torch::nn::Linear(3, 3)), {torch::ones({2, 2})}), c10::Error)
      << "its own error stays";
}

TEST(LayerListTest, ListsAndSequentialsFlatten) {
  torch::nn::Sequential plain(torch::nn::Linear(2, 2), torch::nn::ReLU());
  torch::nn::Sequential named({{"conv", torch::nn::Linear(2, 2)}, {"act", torch::nn::Tanh()}});
  std::vector<Layer> vector = {LayerSpec<torch::nn::Linear>(2, 3), [](at::Tensor x) { return x; }};
  LayerList list = {plain, LayerList{named, LayerList{torch::nn::Sigmoid()}}, vector, named.ptr()};
  list.push_back([](const at::Tensor& x) { return x.flatten(); });
  list.push_back({});
  std::vector<std::string> types;
  std::vector<std::string> names;
  for (const Layer& layer : list) {
    types.push_back(layer.type());
    names.push_back(layer.name().value_or("-"));
  }
  EXPECT_THAT(types, ElementsAre("Linear", "ReLU", "Linear", "Tanh", "Sigmoid", "Linear", "function", "Linear", "Tanh",
                                 "function"));
  EXPECT_THAT(names, ElementsAre("-", "-", "conv", "act", "-", "-", "-", "conv", "act", "-"));
  EXPECT_EQ(list.size(), 10);
  EXPECT_EQ(list[0].build().module, plain->ptr(0));
  EXPECT_EQ(LayerList(list).size(), 10);
  EXPECT_EQ(LayerList{list}.size(), 10);
}

double peak_megabytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

TEST(CountParametersTest, HugeLayersNeedNoMemory) {
  LayerSpec<torch::nn::Linear>(2, 2).trainable_parameters(); // loads what counting needs
  const double before = peak_megabytes();
  EXPECT_EQ(LayerSpec<torch::nn::Linear>(100000, 100000).trainable_parameters(), 10'000'100'000);
  const auto words = torch::nn::EmbeddingOptions(1'000'000, 10'000).padding_idx(0);
  EXPECT_EQ(LayerSpec<torch::nn::Embedding>(words).trainable_parameters(), 10'000'000'000);
  EXPECT_EQ(LayerSpec<torch::nn::Conv2d>(torch::nn::Conv2dOptions(30000, 30000, 3)).trainable_parameters(),
            8'100'030'000);
  EXPECT_LT(peak_megabytes() - before, 50);
}

TEST(CountParametersTest, EveryKindOfModuleAndTheTruth) {
  EXPECT_EQ(LayerSpec<torch::nn::LSTM>(7, 5).trainable_parameters(), 280);
  EXPECT_EQ(LayerSpec<torch::nn::BatchNorm2d>(6).trainable_parameters(), 12);
  EXPECT_EQ(LayerSpec<torch::nn::TransformerEncoderLayer>(8, 2).trainable_parameters(),
            count_parameters(*torch::nn::TransformerEncoderLayer(8, 2)));
  EXPECT_EQ(LayerSpec<PickyImpl>(5).trainable_parameters(), 8) << "built for real";
}

TEST(CountParametersTest, FrozenAndSharedParameters) {
  torch::nn::Linear linear(3, 3);
  linear->bias.set_requires_grad(false);
  EXPECT_EQ(Layer(linear).trainable_parameters(), 9);
  torch::nn::Sequential twice(linear, linear);
  EXPECT_EQ(count_parameters(*twice), 9);
}

TEST(CountParametersTest, LeavesNoTrace) {
  torch::manual_seed(5);
  const at::Tensor expected = torch::rand({3});
  torch::manual_seed(5);
  LayerSpec<torch::nn::Linear>(100, 100).trainable_parameters();
  LayerSpec<PickyImpl>(5).trainable_parameters();
  EXPECT_TRUE(torch::rand({3}).equal(expected)) << "random numbers were used up";
  EXPECT_TRUE(torch::ones({2}).is_cpu());
  Layer layer = LayerSpec<torch::nn::Linear>(3, 3).initialise([](torch::nn::Module&) { FAIL() << "only counted"; });
  EXPECT_EQ(layer.trainable_parameters(), 12);
}

TEST(MetaDeviceGuardTest, OverrulesTheDevice) {
  {
    const MetaDeviceGuard guard;
    EXPECT_TRUE(torch::randn({2, 3}).is_meta());
    EXPECT_TRUE(torch::arange(4, torch::device(torch::kCPU)).is_meta());
    EXPECT_TRUE(torch::zeros({2}).to(torch::kCPU).is_meta());
    EXPECT_TRUE((torch::ones({2, 2}).requires_grad_() * 2).requires_grad());
  }
  EXPECT_TRUE(torch::zeros({2}).is_cpu());
}

} // namespace
} // namespace trireme::pipeline
