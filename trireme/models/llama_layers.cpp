#include <trireme/models/llama_layers.h>

#include <trireme/models/language_layers.h>
#include <trireme/models/llama.h>
#include <trireme/models/llama_values.h>

namespace trireme::models {

pipeline::LayerList llama_layers(const LlamaOptions& options, const ModelRanks& ranks) {
  const auto positions = std::make_shared<const RotaryPositions>(options, ranks);
  return language_layers(
      layer_shapes(options), ranks, options.tie_embeddings,
      [&, block = int64_t{0}](const LayerShape& part) mutable -> pipeline::Layer {
        if (part.kind == LayerShape::Kind::block) {
          return DocumentLayer<LlamaBlock>(options, ranks, block++, positions);
        }
        return DocumentLayer<RmsNorm>(options.hidden, options.rms_norm_eps);
      },
      std::make_shared<const ModelValues>(llama_values(options)));
}

pipeline::Loss llama_loss(const LlamaOptions& options, const ModelRanks& ranks) {
  return language_loss(options.vocab_size, ranks);
}

} // namespace trireme::models
