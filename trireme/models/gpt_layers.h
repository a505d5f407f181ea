#pragma once

#include <trireme/models/language_layers.h>
#include <trireme/models/options.h>
#include <trireme/models/ranks.h>
#include <trireme/parallel/pipeline/module.h>

#include <functional>

namespace trireme::models {

/// Gpt as a list of layers for a pipeline: token embedding, positions, blocks, last norm, head.
/// Parameter names, initial values and the function are Gpt's, so checkpoints of either fit the
/// other. The tied head is a TiedLayerSpec on the token embedding. With init_from each stage reads
/// its own layers from the file. Returns the logits of this rank's part of the vocabulary and of its
/// tokens.
pipeline::LayerList gpt_layers(const GptOptions& options, const ModelRanks& ranks = {});

/// token_loss() for the outputs of gpt_layers() among these ranks.
pipeline::Loss gpt_loss(const GptOptions& options, const ModelRanks& ranks);

} // namespace trireme::models
