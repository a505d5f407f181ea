#pragma once

#include <trireme/models/options.h>
#include <trireme/models/ranks.h>
#include <trireme/parallel/pipeline/module.h>

#include <functional>

namespace trireme::models {

/// masked_lm_loss() ignores targets with this value.
inline constexpr int64_t kIgnoredTarget = -100;

/// Makes BERT with its head as a list of layers.
///
/// Takes tokens [B, T] (int64), a mask [B, T] (bool, true for real tokens), and optionally segments [B, T] (int64).
/// Returns what BertOptions::Head says: logits [B, T, V] of this rank's part of the vocabulary and of its tokens,
/// logits of classes, sentence vectors or hidden values. Every block takes and returns (hidden, mask). The decoder is a
/// TiedLayerSpec on the word embedding. Parameters have Hugging Face's names
/// ("bert.encoder.layer.0.attention.self.query.weight", "cls.predictions.transform.dense.weight"); initial
/// values: bert_values(). Source: Devlin et al. 2018, arXiv:1810.04805. Errors: InputError for heads that do not divide
/// hidden, and for ranks that split the tokens of a sample where the head needs all of them.
pipeline::LayerList bert_layers(const BertOptions& options, const ModelRanks& ranks = {});

/// Mean cross-entropy in nats of logits [B, T, V] over the positions whose target [B, T] is not kIgnoredTarget; 0 if
/// there are none.
at::Tensor masked_lm_loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets);
/// Mean cross-entropy in nats of logits [B, classes] against class numbers [B].
at::Tensor class_loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets);
/// masked_lm_loss() or class_loss() for the outputs of bert_layers() among these ranks. Errors: InputError for the
/// other heads.
std::function<at::Tensor(const pipeline::Tensors& outputs, const pipeline::Tensors& targets)> bert_loss(
    const BertOptions& options, const ModelRanks& ranks);

} // namespace trireme::models
