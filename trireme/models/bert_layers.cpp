#include <trireme/models/bert_layers.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>
#include <trireme/models/bert.h>
#include <trireme/models/bert_values.h>
#include <trireme/parallel/tensor/cross_entropy.h>
#include <trireme/parallel/tensor/layers.h>

#include <memory>
#include <utility>
#include <vector>

namespace trireme::models {

using pipeline::Layer;
using pipeline::LayerSpec;
using pipeline::Tensors;
using pipeline::TiedLayerSpec;

pipeline::LayerList bert_layers(const BertOptions& options, const ModelRanks& ranks) {
  using Head = BertOptions::Head;
  const bool splits_tokens = ranks.shares_tokens() || ranks.tensor.splits_sequence();
  if (splits_tokens && options.head != Head::masked_lm) {
    throw InputError("bert", "this head needs all tokens of a sample, but ranks split them",
                     "Use one context rank and no sequence_parallel.");
  }
  const auto values = std::make_shared<const ModelValues>(bert_values(options));
  const auto named = [&](Layer layer, const std::string& prefix) {
    layer.name(prefix);
    layer.initialise([prefix, values](torch::nn::Module& module) { values->fill(prefix, module); });
    return layer;
  };
  TiedLayerSpec<tensor::VocabParallelEmbedding> words("word_embeddings", options.vocab_size, options.hidden,
                                                      ranks.tensor);
  TiedLayerSpec<tensor::VocabParallelEmbedding> decoder = words;
  words.forward_fn([ranks](tensor::VocabParallelEmbedding& embedding, const Tensors& inputs) {
    Tensors outputs = inputs; // mask and segments pass unchanged
    outputs.at(0) = embedding->forward(own_tokens(inputs.at(0), ranks));
    return outputs;
  });
  decoder.forward_fn(
      [](tensor::VocabParallelEmbedding& embedding, const at::Tensor& x_BTH) { return embedding->logits(x_BTH); });

  const std::string words_name = "bert.embeddings.word_embeddings";
  std::vector<Layer> layers;
  layers.push_back(named(words, words_name));
  layers.push_back(named(LayerSpec<BertEmbeddings>(options, ranks), "bert.embeddings"));
  for (int64_t i = 0; i < options.layers; ++i) {
    layers.push_back(named(LayerSpec<BertBlock>(options, ranks, i), concat("bert.encoder.layer.", i)));
  }
  switch (options.head) {
    case Head::masked_lm:
      layers.push_back(named(LayerSpec<BertHeadTransform>(options), "cls.predictions.transform"));
      layers.push_back(named(decoder, words_name));
      layers.push_back(named(LayerSpec<BertDecoderBias>(options, ranks), "cls.predictions"));
      break;
    case Head::classes:
      layers.push_back(named(LayerSpec<BertPooler>(options), "bert.pooler"));
      layers.push_back(named(LayerSpec<BertClassifier>(options), "classifier"));
      break;
    case Head::sentence:
      layers.emplace_back(sentence_vectors);
      break;
    case Head::none:
      layers.emplace_back([](const at::Tensor& x_BTH, const at::Tensor&) { return x_BTH; });
      break;
  }
  return pipeline::LayerList(std::move(layers));
}

at::Tensor masked_lm_loss(const Tensors& outputs, const Tensors& targets) {
  const at::Tensor& logits = outputs.at(0);
  const at::Tensor target = targets.at(0).reshape({-1});
  const at::Tensor sum =
      fused::cross_entropy(logits.reshape({-1, logits.size(-1)}), target, at::Reduction::Sum, kIgnoredTarget);
  return sum / target.ne(kIgnoredTarget).sum().clamp_min(1);
}

at::Tensor class_loss(const Tensors& outputs, const Tensors& targets) {
  return fused::cross_entropy(outputs.at(0), targets.at(0).reshape({-1}), at::Reduction::Mean);
}

std::function<at::Tensor(const Tensors&, const Tensors&)> bert_loss(const BertOptions& options,
                                                                    const ModelRanks& ranks) {
  if (options.head == BertOptions::Head::classes) {
    return class_loss;
  }
  if (options.head != BertOptions::Head::masked_lm) {
    throw InputError("bert", "only the heads masked_lm and classes have a loss",
                     "Give the pipeline a loss of your own.");
  }
  if (ranks.tensor.alone() && !ranks.shares_tokens()) {
    return masked_lm_loss;
  }
  return [classes = options.vocab_size, ranks](const Tensors& outputs, const Tensors& targets) {
    const at::Tensor& logits = outputs.at(0);
    const at::Tensor target = own_tokens(targets.at(0), ranks).reshape({-1});
    const at::Tensor sum = tensor::cross_entropy(logits.reshape({-1, logits.size(-1)}), target, classes, ranks.tensor,
                                                 at::Reduction::Sum, kIgnoredTarget);
    return mean_over_tokens(sum, target.ne(kIgnoredTarget).sum(), ranks);
  };
}

} // namespace trireme::models
