#include <trireme/models/bert_layers.h>

#include <trireme/base/error.h>
#include <trireme/models/bert.h>

#include <torch/nn/modules/embedding.h>

#include <utility>
#include <vector>

namespace trireme::models {

using pipeline::Layer;
using pipeline::LayerSpec;
using pipeline::Tensors;
using pipeline::TiedLayerSpec;

pipeline::LayerList bert_layers(const BertOptions& options) {
  if (options.heads < 1 || options.hidden % options.heads != 0) {
    throw InputError("bert", concat("heads must divide hidden, got ", options.heads, " and ", options.hidden));
  }
  const auto named = [&](Layer layer, const std::string& prefix) {
    layer.name(prefix);
    layer.initialise([prefix, options](torch::nn::Module& module) {
      for (const auto& item : module.named_parameters()) {
        initialise_bert(concat(prefix, '.', item.key()), item.value(), options);
      }
    });
    return layer;
  };
  TiedLayerSpec<torch::nn::Embedding> words("word_embeddings", options.vocab_size, options.hidden);
  TiedLayerSpec<torch::nn::Embedding> decoder = words;
  words.forward_fn([](torch::nn::Embedding& embedding, const Tensors& inputs) {
    Tensors outputs = inputs; // mask and segments go on as they are
    outputs.at(0) = embedding->forward(inputs.at(0));
    return outputs;
  });
  decoder.forward_fn([](torch::nn::Embedding& embedding, const at::Tensor& x_BTH) { return at::linear(x_BTH, embedding->weight); });

  const std::string words_name = "bert.embeddings.word_embeddings";
  std::vector<Layer> layers;
  layers.push_back(named(words, words_name));
  layers.push_back(named(LayerSpec<BertEmbeddings>(options), "bert.embeddings"));
  for (int64_t i = 0; i < options.layers; ++i) {
    layers.push_back(named(LayerSpec<BertBlock>(options), concat("bert.encoder.layer.", i)));
  }
  layers.push_back(named(LayerSpec<BertHeadTransform>(options), "cls.predictions.transform"));
  layers.push_back(named(decoder, words_name));
  layers.push_back(named(LayerSpec<BertDecoderBias>(options), "cls.predictions"));
  return pipeline::LayerList(std::move(layers));
}

at::Tensor masked_lm_loss(const Tensors& outputs, const Tensors& targets) {
  const at::Tensor& logits = outputs.at(0);
  const at::Tensor target = targets.at(0).reshape({-1});
  const at::Tensor sum = at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), target, {}, at::Reduction::Sum, kIgnoredTarget);
  return sum / target.ne(kIgnoredTarget).sum().clamp_min(1);
}

} // namespace trireme::models
