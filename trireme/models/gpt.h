#pragma once

#include <trireme/models/key_value_cache.h>
#include <trireme/models/language_head.h>
#include <trireme/models/options.h>
#include <trireme/models/ranks.h>
#include <trireme/parallel/tensor/layers.h>
#include <trireme/shards/zero/sharded.h>

#include <torch/nn/modules/container/any_module_holder.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <filesystem>
#include <string>

// B batch, T tokens, H hidden, A heads, V vocabulary. If ModelRanks split tokens or sequences, hidden values have this
// rank's part of the T tokens. positions [B, T], if given: those of packed documents (documents.h), beyond which no
// attention goes.
namespace trireme::models {

class ModelValues;

/// Token plus learned position embedding: [B, T] int64 -> [B, T, H].
class GptEmbeddingImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& tokens_BT, const at::Tensor& positions_BT = {});
  /// The same for the tokens that a cache has next.
  at::Tensor extend(const at::Tensor& tokens_BT, KeyValueCache& cache);

  zero::Sharded<tensor::VocabParallelEmbedding> wte{nullptr};
  zero::Sharded<torch::nn::Embedding> wpe{nullptr};
  double dropout = 0;
  ModelRanks ranks;
};
TORCH_MODULE(GptEmbedding);

/// Causal self-attention: [B, T, H] -> [B, T, H].
class GptAttentionImpl : public torch::nn::Module {
 public:
  /// Errors: InputError when the tensor ranks do not divide the heads.
  GptAttentionImpl(const GptOptions& options, const ModelRanks& ranks);
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& positions_BT = {});
  /// The input of c_proj: the mixed values of this rank's heads, [B, T, H of these].
  at::Tensor mix(const at::Tensor& x_BTH, const at::Tensor& positions_BT = {});
  /// mix() of the tokens that a cache has next, whose keys and values it keeps.
  at::Tensor extend(const at::Tensor& x_BTH, KeyValueCache& cache, int64_t layer);

  tensor::ColumnParallelLinear c_attn{nullptr};
  tensor::RowParallelLinear c_proj{nullptr};
  int64_t heads; ///< of this rank
  double dropout;
  ModelRanks ranks;
};
TORCH_MODULE(GptAttention);

/// H -> 4H -> H with the tanh form of GELU, and the sum with the residual.
class GptMlpImpl : public torch::nn::Module {
 public:
  GptMlpImpl(const GptOptions& options, const ModelRanks& ranks);
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& residual_BTH);
  /// The input of c_proj: [B, T, this rank's part of 4H].
  at::Tensor activate(const at::Tensor& x_BTH);

  tensor::ColumnParallelLinear c_fc{nullptr};
  tensor::RowParallelLinear c_proj{nullptr};
  double dropout;
  ModelRanks ranks;
};
TORCH_MODULE(GptMlp);

/// Pre-norm transformer block. The passes after the projections add their biases (fused/fused.h).
class GptBlockImpl : public torch::nn::Module {
 public:
  /// `layer`: index from 0, which decides whether it has adapters.
  explicit GptBlockImpl(const GptOptions& options, const ModelRanks& ranks = {}, int64_t layer = 0);
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& positions_BT = {});
  at::Tensor extend(const at::Tensor& x_BTH, KeyValueCache& cache, int64_t layer);

  torch::nn::LayerNorm ln_1{nullptr};
  GptAttention attn{nullptr};
  torch::nn::LayerNorm ln_2{nullptr};
  GptMlp mlp{nullptr};
  double dropout;

 private:
  /// What follows the mixed values, without dropout.
  at::Tensor finish(const at::Tensor& mixed, const at::Tensor& x_BTH);
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())}) // in a Sequential
};
TORCH_MODULE(GptBlock);

/// Adds the learned positions: [B, T, H] -> [B, T, H]. GptTrunk has it inside GptEmbedding.
class GptPositionsImpl : public torch::nn::Module {
 public:
  explicit GptPositionsImpl(const GptOptions& options, const ModelRanks& ranks = {});
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& positions_BT = {});

  at::Tensor weight; ///< [sequence_length, H]
  double dropout;
  ModelRanks ranks;
};
TORCH_MODULE(GptPositions);

/// All layers below the head, under Hugging Face's name "transformer".
class GptTrunkImpl : public torch::nn::Module {
 public:
  GptTrunkImpl(const GptOptions& options, const ModelRanks& ranks, const ModelValues& values);
  at::Tensor forward(const at::Tensor& tokens_BT, const at::Tensor& positions_BT = {});
  /// Of the last token of each row, [B, 1, H].
  at::Tensor extend(const at::Tensor& tokens_BT, KeyValueCache& cache);

  GptEmbedding embedding; ///< registered as wte and wpe
  zero::ShardedList<GptBlock> h;
  torch::nn::LayerNorm ln_f{nullptr};
};
TORCH_MODULE(GptTrunk);

/// GPT-2: [B, T] int64 tokens -> [B, T, V] logits.
///
/// Parameters have Hugging Face's GPT-2 names ("transformer.h.0.attn.c_attn.weight") in torch's Linear layout;
/// save_gpt2/load_gpt2 convert to GPT-2's [in, out] layout and back. Initial values: gpt_values(). Embeddings, blocks
/// and head are units of ZeRO stage 3 (zero::Sharded); built under zero::Init, no two of them are gathered on a
/// rank at a time. Tensor-parallel ranks split heads, MLPs and vocabulary; context-parallel ranks split the tokens.
/// Every rank gets the same batch and the same logits. loss() is the same on all tensor ranks; its mean over the
/// context ranks is that of all tokens. Source: Radford et al. 2019, "Language Models are Unsupervised Multitask
/// Learners".
class GptImpl : public torch::nn::Module {
 public:
  /// Errors: InputError for sizes that do not fit each other or the ranks.
  explicit GptImpl(const GptOptions& options, const ModelRanks& ranks = {});
  at::Tensor forward(const at::Tensor& tokens_BT, const at::Tensor& positions_BT = {});
  /// Mean cross-entropy in nats per token against targets [B, T]. No rank has the logits of the full vocabulary.
  at::Tensor loss(const at::Tensor& tokens_BT, const at::Tensor& targets_BT, const at::Tensor& positions_BT = {});
  /// As Llama's.
  at::Tensor extend(const at::Tensor& tokens_BT, KeyValueCache& cache);

  const GptOptions& options() const { return options_; }

  GptTrunk transformer{nullptr};
  zero::Sharded<tensor::ColumnParallelLinear> lm_head{nullptr}; ///< absent when tied to the token embedding

 private:
  /// The head's input, [B, T or this rank's tokens, H].
  at::Tensor hidden(const at::Tensor& tokens_BT, const at::Tensor& positions_BT = {});
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())}) // in a Sequential
  LanguageHead head();

  GptOptions options_;
  ModelRanks ranks_;
};
TORCH_MODULE(Gpt);

} // namespace trireme::models
