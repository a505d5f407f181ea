// Layers of a list that freeze parameters, by names in checkpoints.
#include <trireme/parallel/pipeline/frozen.h>

#include <trireme/parallel/pipeline/module.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <gmock/gmock.h>

#include <set>

namespace trireme::pipeline {
namespace {

using testing::ElementsAre;
namespace nn = torch::nn;

// All kinds: built here or given, named or numbered, functions, ties of modules and of one attribute.
LayerList all_kinds() {
  const nn::Linear given(4, 4);
  LayerList layers{TiedLayerSpec<nn::Embedding>("tokens", 6, 4).name("tokens"),
                   TiedLayerSpec<nn::Linear>("w", 4, 4).attributes({"weight"}),
                   nn::ReLU(),
                   given,
                   [](const at::Tensor& x) { return x * 2; },
                   given,
                   TiedLayerSpec<nn::Linear>("w", 4, 4).attributes({"weight"}).name("second")};
  layers.push_back(Layer(LayerSpec<nn::Linear>(4, 4)).name("last"));
  layers.push_back(TiedLayerSpec<nn::Embedding>("tokens", 6, 4).forward_fn([](nn::Embedding& embedding, at::Tensor x) {
    return at::linear(x, embedding->weight);
  }));
  return layers;
}

std::set<std::string> saved_names(const PipelineModule& model, bool frozen_only) {
  std::set<std::string> names;
  for (const auto& item : model.named_parameters()) {
    if (!frozen_only || !item.value().requires_grad()) {
      names.insert(model.saved_name(item.key()));
    }
  }
  return names;
}

TEST(FrozenLayersTest, NamesAreThoseOfCheckpoints) {
  const std::vector<std::string> names = parameter_names(all_kinds());
  EXPECT_THAT(names, ElementsAre("tokens.weight", "1.weight", "1.bias", "3.weight", "3.bias", "6.bias", "last.weight",
                                 "last.bias"));
  PipelineModule model(all_kinds());
  model.build();
  EXPECT_EQ(saved_names(model, false), (std::set<std::string>{names.begin(), names.end()}));
}

TEST(FrozenLayersTest, EachParameterIsFrozenAsItIsBuilt) {
  for (const std::string& name : parameter_names(all_kinds())) {
    PipelineModule model(frozen(all_kinds(), [&](const std::string& other) { return other == name; }));
    bool was_frozen = false;
    model.set_hooks({.built = [&](nn::Module& layer) { // which shards it
      for (const at::Tensor& parameter : layer.parameters()) {
        was_frozen = was_frozen || !parameter.requires_grad();
      }
    }});
    model.build();
    EXPECT_EQ(saved_names(model, true), std::set<std::string>{name});
    EXPECT_TRUE(was_frozen) << name;
  }
}

// What is frozen costs a forward, too: the stages stay as they are.
TEST(FrozenLayersTest, PartitionsCountFrozenParameters) {
  const LayerList layers{LayerSpec<nn::Linear>(4, 64), LayerSpec<nn::Linear>(64, 64), LayerSpec<nn::Linear>(64, 4)};
  const LayerList all_but_one = frozen(layers, [](const std::string& name) { return !name.starts_with("2."); });
  EXPECT_EQ(make_partition(all_but_one, "parameters", {}, 2).costs, make_partition(layers, "parameters", {}, 2).costs);
  EXPECT_THAT(all_but_one[0].frozen_parameters(), ElementsAre("weight", "bias"));
  EXPECT_THAT(all_but_one[2].frozen_parameters(), ElementsAre());
}

// A layer's initialise() is called before, and layers of the list that was given stay trained.
TEST(FrozenLayersTest, TheGivenListStaysAsItIs) {
  const LayerList layers{Layer(LayerSpec<nn::Linear>(2, 2)).initialise([](nn::Module& module) {
    for (at::Tensor& parameter : module.parameters()) {
      parameter.fill_(3);
    }
  })};
  const auto built = frozen(layers, [](const std::string&) { return true; })[0].build().module;
  for (const at::Tensor& parameter : built->parameters()) {
    EXPECT_FALSE(parameter.requires_grad());
    EXPECT_TRUE(parameter.eq(3).all().item<bool>());
  }
  EXPECT_TRUE(layers[0].build().module->parameters()[0].requires_grad());
}

} // namespace
} // namespace trireme::pipeline
