#include <trireme/models/gpt_layers.h>

#include <trireme/fused/fused.h>
#include <trireme/models/gpt.h>
#include <trireme/models/gpt_values.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

namespace trireme::models {
namespace {

namespace nn = torch::nn;
using pipeline::Layer;
using pipeline::LayerSpec;
using pipeline::TiedLayerSpec;

} // namespace

pipeline::LayerList gpt_layers(const GptOptions& options) {
  const auto values = std::make_shared<const GptValues>(options);
  const TiedLayerSpec<nn::Embedding> tied("wte", options.vocab_size, options.hidden);
  const auto layer_of = [&](GptPart::Kind kind) -> Layer {
    switch (kind) {
      case GptPart::Kind::tokens:
        return options.tie_embeddings ? Layer(tied) : Layer(LayerSpec<nn::Embedding>(options.vocab_size, options.hidden));
      case GptPart::Kind::positions:
        return LayerSpec<GptPositions>(options);
      case GptPart::Kind::block:
        return LayerSpec<GptBlock>(options);
      case GptPart::Kind::norm:
        return LayerSpec<nn::LayerNorm>(nn::LayerNormOptions({options.hidden}).eps(1e-5));
      case GptPart::Kind::head:
        break;
    }
    if (!options.tie_embeddings) {
      return LayerSpec<nn::Linear>(nn::LinearOptions(options.hidden, options.vocab_size).bias(false));
    }
    TiedLayerSpec<nn::Embedding> head = tied;
    head.forward_fn([](nn::Embedding& embedding, const at::Tensor& x_BTH) { return at::linear(x_BTH, embedding->weight); });
    return head;
  };
  std::vector<Layer> layers;
  for (const GptPart& part : gpt_parts(options)) {
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

} // namespace trireme::models
