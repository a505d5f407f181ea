#pragma once

#include <trireme/models/options.h>
#include <trireme/models/ranks.h>
#include <trireme/parallel/pipeline/module.h>

#include <functional>

namespace trireme::models {

/// Llama as a list of layers for a pipeline: token embedding, blocks, last norm, head. Parameter names, initial values
/// and the function are Llama's, so checkpoints of either fit the other. A tied head is a TiedLayerSpec on the token
/// embedding. With init_from each stage reads its own layers from the files. Returns the logits of this rank's part of
/// the vocabulary and of its tokens.
pipeline::LayerList llama_layers(const LlamaOptions& options, const ModelRanks& ranks = {});

/// Mean cross-entropy in nats per token of the outputs of llama_layers() among these ranks against targets [B, T].
pipeline::Loss llama_loss(const LlamaOptions& options, const ModelRanks& ranks);

} // namespace trireme::models
