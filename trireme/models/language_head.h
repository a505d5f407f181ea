#pragma once

#include <trireme/models/ranks.h>
#include <trireme/parallel/tensor/layers.h>
#include <trireme/shards/zero/sharded.h>

namespace trireme::models {

/// The loss of the logits that this layer makes of x, in chunks (head_loss()). Undefined if all logits are the better
/// form: where they are few, and of layers with adapters or FP8. The arguments are head_loss()'s.
at::Tensor loss_in_chunks(const tensor::VocabParallelEmbeddingImpl& tied, const at::Tensor& x_BTH,
                          const at::Tensor& targets_BT, int64_t vocabulary, const ModelRanks& ranks);
at::Tensor loss_in_chunks(const tensor::ColumnParallelLinearImpl& linear, const at::Tensor& x_BTH,
                          const at::Tensor& targets_BT, int64_t vocabulary, const ModelRanks& ranks);

/// The last layer of a language model: `linear`, or if that is empty the token embedding, tied.
struct LanguageHead {
  zero::Sharded<tensor::VocabParallelEmbedding>& embedding;
  zero::Sharded<tensor::ColumnParallelLinear>& linear;
  int64_t vocabulary;
  const ModelRanks& ranks;

  /// The logits of this rank's part of the vocabulary.
  at::Tensor logits(const at::Tensor& x_BTH) const;
  /// split_token_loss() of these logits, or loss_in_chunks().
  at::Tensor loss(const at::Tensor& x_BTH, const at::Tensor& targets_BT) const;
};

} // namespace trireme::models
