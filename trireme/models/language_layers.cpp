#include <trireme/models/language_layers.h>

#include <trireme/fused/fused.h>
#include <trireme/models/documents.h>
#include <trireme/models/language_head.h>
#include <trireme/parallel/tensor/layers.h>

namespace trireme::models {

using pipeline::Layer;
using pipeline::LayerSpec;
using pipeline::Tensors;
using pipeline::TiedLayerSpec;

pipeline::LayerList language_layers(const std::vector<LayerShape>& shapes, const ModelRanks& ranks, bool tie_embeddings,
                                    const std::function<Layer(const LayerShape& part)>& make,
                                    const std::shared_ptr<const ModelValues>& values) {
  const std::vector<int64_t>& sizes = shapes.front().parameters.front().sizes; // [vocabulary, hidden]
  TiedLayerSpec<tensor::VocabParallelEmbedding> tied(shapes.front().name, sizes[0], sizes[1], ranks.tensor);
  tied.forward_fn([ranks](tensor::VocabParallelEmbedding& embedding, const Tensors& inputs) {
    if (inputs.size() > 1) {
      check_documents("model", inputs.at(0), inputs[1], ranks);
    }
    Tensors outputs = inputs; // positions pass unchanged
    outputs.at(0) = embedding->forward(own_tokens(inputs.at(0), ranks));
    return outputs;
  });
  const auto layer_of = [&](const LayerShape& part) -> Layer {
    if (part.kind == LayerShape::Kind::tokens) {
      return tied; // not tied without a second one
    }
    if (part.kind != LayerShape::Kind::head) {
      return make(part);
    }
    if (!tie_embeddings) {
      return LayerSpec<tensor::ColumnParallelLinear>(sizes[1], sizes[0], ranks.tensor, /*bias=*/false);
    }
    TiedLayerSpec<tensor::VocabParallelEmbedding> head = tied;
    head.forward_fn(
        [](tensor::VocabParallelEmbedding& embedding, const at::Tensor& x_BTH) { return embedding->logits(x_BTH); });
    return head;
  };
  std::vector<Layer> layers;
  for (const LayerShape& part : shapes) {
    Layer& layer = layers.emplace_back(layer_of(part));
    layer.name(part.name);
    layer.initialise([prefix = part.name, values](torch::nn::Module& module) { values->fill(prefix, module); });
  }
  return pipeline::LayerList(std::move(layers));
}

at::Tensor token_loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
  const at::Tensor& logits = outputs.at(0);
  return fused::cross_entropy(logits.reshape({-1, logits.size(-1)}), targets.at(0).reshape({-1}), at::Reduction::Mean);
}

pipeline::Loss language_loss(int64_t vocabulary, const ModelRanks& ranks) {
  const auto of_outputs = [vocabulary, ranks](const Tensors& outputs, const Tensors& targets) {
    return split_token_loss(outputs.at(0), targets.at(0), vocabulary, ranks);
  };
  return {of_outputs, [vocabulary, ranks](const std::shared_ptr<torch::nn::Module>& module, const Tensors& inputs,
                                          const Tensors& targets) {
            if (auto* const tied = dynamic_cast<tensor::VocabParallelEmbeddingImpl*>(module.get())) {
              return loss_in_chunks(*tied, inputs.at(0), targets.at(0), vocabulary, ranks);
            }
            if (auto* const linear = dynamic_cast<tensor::ColumnParallelLinearImpl*>(module.get())) {
              return loss_in_chunks(*linear, inputs.at(0), targets.at(0), vocabulary, ranks);
            }
            return at::Tensor();
          }};
}

} // namespace trireme::models
