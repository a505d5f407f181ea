#pragma once

#include <trireme/models/ranks.h>
#include <trireme/parallel/tensor/layers.h>
#include <trireme/shards/zero/sharded.h>

namespace trireme::models {

/// The last layer of a language model: `linear`, or if that is empty the token embedding, tied.
struct LanguageHead {
  zero::Sharded<tensor::VocabParallelEmbedding>& embedding;
  zero::Sharded<tensor::ColumnParallelLinear>& linear;
  int64_t vocabulary;
  const ModelRanks& ranks;

  /// The logits of this rank's part of the vocabulary.
  at::Tensor logits(const at::Tensor& x_BTH) const;
  /// split_token_loss() of these logits; in chunks (head_loss()) where they are many, unless the layer has adapters or
  /// multiplies in FP8.
  at::Tensor loss(const at::Tensor& x_BTH, const at::Tensor& targets_BT) const;
};

} // namespace trireme::models
