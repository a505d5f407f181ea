#pragma once

#include <trireme/models/key_value_cache.h>
#include <trireme/models/language_head.h>
#include <trireme/models/options.h>
#include <trireme/models/ranks.h>
#include <trireme/models/rms_norm.h>
#include <trireme/models/rotary.h>
#include <trireme/parallel/tensor/attention.h>
#include <trireme/parallel/tensor/layers.h>
#include <trireme/parallel/tensor/mlp.h>
#include <trireme/shards/zero/sharded.h>

#include <torch/nn/modules/container/any_module_holder.h>
#include <torch/nn/pimpl.h>

#include <memory>

// B batch, T tokens, H hidden, V vocabulary. If ModelRanks split tokens or sequences, hidden values have this rank's
// part of the T tokens.
namespace trireme::models {

class ModelValues;

/// Causal self-attention with rotary positions and grouped queries: [B, T, H] -> [B, T, H].
class LlamaAttentionImpl : public tensor::ParallelAttentionImpl {
 public:
  /// `layer`: index from 0, which decides whether a window applies.
  LlamaAttentionImpl(const LlamaOptions& options, const ModelRanks& ranks, int64_t layer,
                     std::shared_ptr<const RotaryPositions> positions);
  /// positions [B, T], if given, are those of packed documents (documents.h), beyond which no attention goes; so below.
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& positions_BT = {});
  /// The same for the tokens that a cache has next, whose keys and values it keeps.
  at::Tensor extend(const at::Tensor& x_BTH, KeyValueCache& cache, int64_t layer);

  RmsNorm q_norm{nullptr}; ///< absent without LlamaOptions::qk_norm
  RmsNorm k_norm{nullptr};

 private:
  /// Before rotation.
  Heads normalised(const at::Tensor& x_BTH);
  at::Tensor mix_documents(const Heads& heads, const at::Tensor& positions_BT);
  /// Normalises each head. Every tensor rank has some heads, so the gradients of the weight are summed over them.
  at::Tensor normalise(RmsNorm& norm, const at::Tensor& x_BATD) const;

  std::shared_ptr<const RotaryPositions> positions_;
  tensor::Ranks ranks_;
};
TORCH_MODULE(LlamaAttention);

/// Pre-norm transformer block.
class LlamaBlockImpl : public torch::nn::Module {
 public:
  LlamaBlockImpl(const LlamaOptions& options, const ModelRanks& ranks, int64_t layer,
                 const std::shared_ptr<const RotaryPositions>& positions);
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& positions_BT = {});
  at::Tensor extend(const at::Tensor& x_BTH, KeyValueCache& cache, int64_t layer);

  RmsNorm input_layernorm{nullptr};
  LlamaAttention self_attn{nullptr};
  RmsNorm post_attention_layernorm{nullptr};
  tensor::ParallelMlp mlp{nullptr};

 private:
  /// What follows attention.
  at::Tensor finish(const at::Tensor& attended, const at::Tensor& x_BTH);
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())}) // in a Sequential
};
TORCH_MODULE(LlamaBlock);

/// All layers below the head, under Hugging Face's name "model".
class LlamaTrunkImpl : public torch::nn::Module {
 public:
  LlamaTrunkImpl(const LlamaOptions& options, const ModelRanks& ranks, const ModelValues& values);
  at::Tensor forward(const at::Tensor& tokens_BT, const at::Tensor& positions_BT = {});
  /// Of the last token of each row, [B, 1, H].
  at::Tensor extend(const at::Tensor& tokens_BT, KeyValueCache& cache);

  zero::Sharded<tensor::VocabParallelEmbedding> embed_tokens{nullptr};
  zero::ShardedList<LlamaBlock> layers;
  RmsNorm norm{nullptr};
};
TORCH_MODULE(LlamaTrunk);

/// Llama and its relatives (LlamaOptions): [B, T] int64 tokens -> [B, T, V] logits.
///
/// Parameters have Hugging Face's names and shapes ("model.layers.0.self_attn.q_proj.weight", "lm_head.weight"), so its
/// files need no conversion. Initial values: llama_values(). Embedding, blocks and head are units of ZeRO stage 3
/// (zero::Sharded). Tensor-parallel ranks split heads, MLPs and vocabulary; several may share a head of keys
/// (tensor/attention.h). Context-parallel ranks split the tokens. Every rank gets the same batch and the same logits.
/// loss() is the same on all tensor ranks; its mean over the context ranks is that of all tokens. Source: Touvron et
/// al. 2023, arXiv:2307.09288.
class LlamaImpl : public torch::nn::Module {
 public:
  /// Errors: InputError for sizes that do not fit each other or the ranks, and for a window among ranks of ring
  /// attention.
  explicit LlamaImpl(const LlamaOptions& options, const ModelRanks& ranks = {});
  at::Tensor forward(const at::Tensor& tokens_BT, const at::Tensor& positions_BT = {});
  /// Mean cross-entropy in nats per token against targets [B, T]. No rank has the logits of the full vocabulary.
  at::Tensor loss(const at::Tensor& tokens_BT, const at::Tensor& targets_BT, const at::Tensor& positions_BT = {});
  /// Logits [B, V] of what follows each row, of which the cache is told first: cache.begin() or cache.next(). For
  /// generation, without gradients; not for ranks that split tokens or sequences.
  at::Tensor extend(const at::Tensor& tokens_BT, KeyValueCache& cache);

  const LlamaOptions& options() const { return options_; }

  LlamaTrunk model{nullptr};
  zero::Sharded<tensor::ColumnParallelLinear> lm_head{nullptr}; ///< absent when tied to the token embedding

 private:
  /// The head's input, [B, T or this rank's tokens, H].
  at::Tensor hidden(const at::Tensor& tokens_BT, const at::Tensor& positions_BT = {});
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())}) // in a Sequential
  LanguageHead head();

  LlamaOptions options_;
  ModelRanks ranks_;
};
TORCH_MODULE(Llama);

} // namespace trireme::models
