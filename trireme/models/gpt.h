#pragma once

#include <trireme/models/options.h>
#include <trireme/zero/sharded.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <filesystem>
#include <string>

// B batch, T tokens, H hidden, A heads, V vocabulary.
namespace trireme::models {

class GptValues;

/// Token plus learned position embedding: [B, T] int64 -> [B, T, H].
class GptEmbeddingImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& tokens_BT);

  zero::Sharded<torch::nn::Embedding> wte{nullptr};
  zero::Sharded<torch::nn::Embedding> wpe{nullptr};
  double dropout = 0;
};
TORCH_MODULE(GptEmbedding);

/// Causal self-attention: [B, T, H] -> [B, T, H].
class GptAttentionImpl : public torch::nn::Module {
 public:
  explicit GptAttentionImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x_BTH);
  /// What c_proj is applied to: every head's mixed values, [B, T, H].
  at::Tensor mix(const at::Tensor& x_BTH);

  torch::nn::Linear c_attn{nullptr};
  torch::nn::Linear c_proj{nullptr};
  int64_t heads;
  double dropout;
};
TORCH_MODULE(GptAttention);

/// H -> 4H -> H with the tanh form of GELU.
class GptMlpImpl : public torch::nn::Module {
 public:
  explicit GptMlpImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x_BTH);
  /// What c_proj is applied to: [B, T, 4H].
  at::Tensor activate(const at::Tensor& x_BTH);

  torch::nn::Linear c_fc{nullptr};
  torch::nn::Linear c_proj{nullptr};
  double dropout;
};
TORCH_MODULE(GptMlp);

/// Pre-norm transformer block. The projections' biases are added by what follows them (fused/fused.h).
class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x_BTH);

  torch::nn::LayerNorm ln_1{nullptr};
  GptAttention attn{nullptr};
  torch::nn::LayerNorm ln_2{nullptr};
  GptMlp mlp{nullptr};
  double dropout;
};
TORCH_MODULE(GptBlock);

/// Adds the learned positions: [B, T, H] -> [B, T, H]. In GptTrunk a part of GptEmbedding.
class GptPositionsImpl : public torch::nn::Module {
 public:
  explicit GptPositionsImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x_BTH);

  at::Tensor weight; ///< [sequence_length, H]
  double dropout;
};
TORCH_MODULE(GptPositions);

/// Everything below the head, under Hugging Face's name "transformer".
class GptTrunkImpl : public torch::nn::Module {
 public:
  GptTrunkImpl(const GptOptions& options, const GptValues& values);
  at::Tensor forward(const at::Tensor& tokens_BT);

  GptEmbedding embedding; ///< registered as wte and wpe
  zero::ShardedList<GptBlock> h;
  torch::nn::LayerNorm ln_f{nullptr};
};
TORCH_MODULE(GptTrunk);

/// GPT-2: [B, T] int64 tokens -> [B, T, V] logits.
///
/// Parameters carry Hugging Face GPT-2 names ("transformer.h.0.attn.c_attn.weight") in
/// torch's Linear layout; save_gpt2/load_gpt2 turn them into GPT-2's [in, out] layout and back.
/// First values: GptValues. Embeddings, blocks and head are units of ZeRO stage 3 (zero::Sharded), and never on a rank together
/// when it is built under zero::Init.
/// Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
class GptImpl : public torch::nn::Module {
 public:
  /// Errors: InputError for sizes that do not fit each other.
  explicit GptImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& tokens_BT);
  /// Mean cross-entropy in nats a token against targets [B, T].
  at::Tensor loss(const at::Tensor& tokens_BT, const at::Tensor& targets_BT);

  const GptOptions& options() const {
    return options_;
  }

  GptTrunk transformer{nullptr};
  zero::Sharded<torch::nn::Linear> lm_head{nullptr}; ///< absent when tied to the token embedding

 private:
  GptOptions options_;
};
TORCH_MODULE(Gpt);

} // namespace trireme::models
