#pragma once

#include <trireme/models/model_values.h>
#include <trireme/models/options.h>
#include <trireme/models/ranks.h>
#include <trireme/parallel/pipeline/module.h>

#include <functional>
#include <memory>
#include <vector>

// What the layer lists of language models share.
namespace trireme::models {

/// The layers of `shapes` for a pipeline, with their names and initial values. Embedding and head are made here: the
/// weight of `shapes.front()` is [vocabulary, hidden]; a tied head is a TiedLayerSpec on it. `make` makes the others,
/// in order.
pipeline::LayerList language_layers(const std::vector<LayerShape>& shapes, const ModelRanks& ranks, bool tie_embeddings,
                                    const std::function<pipeline::Layer(LayerShape::Kind kind)>& make,
                                    const std::shared_ptr<const ModelValues>& values);

/// Mean cross-entropy of logits [B, T, V] against targets [B, T], in nats per token.
at::Tensor token_loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets);
/// The same for the outputs of language_layers() among these ranks.
std::function<at::Tensor(const pipeline::Tensors& outputs, const pipeline::Tensors& targets)> language_loss(
    int64_t vocabulary, const ModelRanks& ranks);

} // namespace trireme::models
