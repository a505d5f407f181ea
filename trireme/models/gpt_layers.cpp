#include <trireme/models/gpt_layers.h>

#include <trireme/base/error.h>
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
  if (options.heads < 1 || options.hidden % options.heads != 0) {
    throw InputError("gpt", concat("heads must divide hidden, got ", options.heads, " and ", options.hidden));
  }
  const auto values = std::make_shared<const GptValues>(options);
  const auto named = [&](Layer layer, const std::string& prefix) {
    layer.name(prefix);
    layer.initialise([prefix, values](nn::Module& module) { values->fill(prefix, module); });
    return layer;
  };
  const TiedLayerSpec<nn::Embedding> tied("wte", options.vocab_size, options.hidden);
  std::vector<Layer> layers;
  layers.push_back(named(options.tie_embeddings ? Layer(tied) : Layer(LayerSpec<nn::Embedding>(options.vocab_size, options.hidden)), "transformer.wte"));
  layers.push_back(named(LayerSpec<GptPositions>(options), "transformer.wpe"));
  for (int64_t i = 0; i < options.layers; ++i) {
    layers.push_back(named(LayerSpec<GptBlock>(options), concat("transformer.h.", i)));
  }
  layers.push_back(named(LayerSpec<nn::LayerNorm>(nn::LayerNormOptions({options.hidden}).eps(1e-5)), "transformer.ln_f"));
  if (options.tie_embeddings) {
    TiedLayerSpec<nn::Embedding> head = tied;
    head.forward_fn([](nn::Embedding& embedding, const at::Tensor& x_BTH) { return at::linear(x_BTH, embedding->weight); });
    layers.push_back(named(head, "transformer.wte"));
  } else {
    layers.push_back(named(LayerSpec<nn::Linear>(nn::LinearOptions(options.hidden, options.vocab_size).bias(false)), "lm_head"));
  }
  return pipeline::LayerList(std::move(layers));
}

at::Tensor token_loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
  const at::Tensor& logits = outputs.at(0);
  return fused::cross_entropy(logits.reshape({-1, logits.size(-1)}), targets.at(0).reshape({-1}), at::Reduction::Mean);
}

} // namespace trireme::models
