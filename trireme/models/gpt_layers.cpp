#include <trireme/models/gpt_layers.h>

#include <trireme/models/gpt.h>
#include <trireme/models/gpt_values.h>

#include <torch/nn/modules/normalization.h>

namespace trireme::models {

pipeline::LayerList gpt_layers(const GptOptions& options, const ModelRanks& ranks) {
  const auto make = [&, block = int64_t{0}](const LayerShape& part) mutable -> pipeline::Layer {
    switch (part.kind) {
      case LayerShape::Kind::positions:
        return DocumentLayer<GptPositions>(options, ranks);
      case LayerShape::Kind::block:
        return DocumentLayer<GptBlock>(options, ranks, block++);
      default:
        return DocumentLayer<torch::nn::LayerNorm>(torch::nn::LayerNormOptions({options.hidden}).eps(1e-5));
    }
  };
  return language_layers(layer_shapes(options), ranks, options.tie_embeddings, make,
                         std::make_shared<const ModelValues>(gpt_values(options)));
}

pipeline::Loss gpt_loss(const GptOptions& options, const ModelRanks& ranks) {
  return language_loss(options.vocab_size, ranks);
}

} // namespace trireme::models
