#pragma once

#include <trireme/models/ranks.h>
#include <trireme/parallel/tensor/layers.h>
#include <trireme/shards/zero/sharded.h>

namespace trireme::models {

/// The loss of the logits that this layer makes of x: in chunks (head_loss()) where they are many, unless the layer has
/// adapters or multiplies in FP8. The arguments are head_loss()'s.
at::Tensor last_layer_loss(tensor::VocabParallelEmbeddingImpl& tied, const at::Tensor& x_BTH,
                           const at::Tensor& targets_BT, int64_t vocabulary, const ModelRanks& ranks);
at::Tensor last_layer_loss(tensor::ColumnParallelLinearImpl& linear, const at::Tensor& x_BTH,
                           const at::Tensor& targets_BT, int64_t vocabulary, const ModelRanks& ranks);

/// The last layer of a language model: `linear`, or if that is empty the token embedding, tied.
struct LanguageHead {
  zero::Sharded<tensor::VocabParallelEmbedding>& embedding;
  zero::Sharded<tensor::ColumnParallelLinear>& linear;
  int64_t vocabulary;
  const ModelRanks& ranks;

  /// The logits of this rank's part of the vocabulary.
  at::Tensor logits(const at::Tensor& x_BTH) const;
  /// last_layer_loss().
  at::Tensor loss(const at::Tensor& x_BTH, const at::Tensor& targets_BT) const;
};

} // namespace trireme::models
