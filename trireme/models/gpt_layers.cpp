#include <trireme/models/gpt_layers.h>

#include <trireme/fused/fused.h>
#include <trireme/models/gpt.h>
#include <trireme/models/gpt_values.h>
#include <trireme/parallel/tensor/layers.h>

#include <torch/nn/modules/normalization.h>

namespace trireme::models {
namespace {

namespace nn = torch::nn;
using pipeline::Layer;
using pipeline::LayerSpec;
using pipeline::TiedLayerSpec;

} // namespace

pipeline::LayerList gpt_layers(const GptOptions& options, const ModelRanks& ranks) {
  const auto values = std::make_shared<const GptValues>(options);
  const auto embed = [ranks](tensor::VocabParallelEmbedding& embedding, const at::Tensor& tokens_BT) {
    return embedding->forward(own_tokens(tokens_BT, ranks));
  };
  TiedLayerSpec<tensor::VocabParallelEmbedding> tied("wte", options.vocab_size, options.hidden, ranks.tensor);
  tied.forward_fn(embed);
  const auto layer_of = [&](LayerShape::Kind kind) -> Layer {
    switch (kind) {
      case LayerShape::Kind::tokens:
        return tied; // not tied without a second one
      case LayerShape::Kind::positions:
        return LayerSpec<GptPositions>(options, ranks);
      case LayerShape::Kind::block:
        return LayerSpec<GptBlock>(options, ranks);
      case LayerShape::Kind::norm:
        return LayerSpec<nn::LayerNorm>(nn::LayerNormOptions({options.hidden}).eps(1e-5));
      case LayerShape::Kind::head:
        break;
    }
    if (!options.tie_embeddings) {
      return LayerSpec<tensor::ColumnParallelLinear>(options.hidden, options.vocab_size, ranks.tensor, /*bias=*/false);
    }
    TiedLayerSpec<tensor::VocabParallelEmbedding> head = tied;
    head.forward_fn(
        [](tensor::VocabParallelEmbedding& embedding, const at::Tensor& x_BTH) { return embedding->logits(x_BTH); });
    return head;
  };
  std::vector<Layer> layers;
  for (const LayerShape& part : layer_shapes(options)) {
    Layer& layer = layers.emplace_back(layer_of(part.kind));
    layer.name(part.name);
    layer.initialise([prefix = part.name, values](nn::Module& module) { values->fill(prefix, module); });
  }
  return pipeline::LayerList(std::move(layers));
}

at::Tensor token_loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
  const at::Tensor& logits = outputs.at(0);
  return fused::cross_entropy(logits.reshape({-1, logits.size(-1)}), targets.at(0).reshape({-1}), at::Reduction::Mean);
}

std::function<at::Tensor(const pipeline::Tensors&, const pipeline::Tensors&)> gpt_loss(const GptOptions& options,
                                                                                       const ModelRanks& ranks) {
  if (ranks.tensor.alone() && !ranks.shares_tokens()) {
    return token_loss;
  }
  return [classes = options.vocab_size, ranks](const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
    return split_token_loss(outputs.at(0), targets.at(0), classes, ranks);
  };
}

} // namespace trireme::models
