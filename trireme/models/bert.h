#pragma once

#include <trireme/models/options.h>
#include <trireme/models/ranks.h>
#include <trireme/parallel/tensor/layers.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

// B batch, T tokens, H hidden, A heads, V vocabulary. Masks [B, T] are true for real tokens and false for
// padding. If ModelRanks split tokens or sequences, hidden values have this rank's part of the T tokens; masks
// have all.
namespace trireme::models {

/// Adds positions and segments to the word embedding, then LayerNorm and dropout. Passes the mask on.
class BertEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit BertEmbeddingsImpl(const BertOptions& options, const ModelRanks& ranks = {});
  /// Uses segment 0 for all tokens.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT);
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT,
                                            const at::Tensor& segments_BT);

  torch::nn::Embedding position_embeddings{nullptr};
  torch::nn::Embedding token_type_embeddings{nullptr};
  torch::nn::LayerNorm LayerNorm{nullptr};

 private:
  std::pair<at::Tensor, at::Tensor> finish(const at::Tensor& x_BTH, const at::Tensor& mask_BT,
                                           const at::Tensor& segment_embeddings);

  double dropout_;
  ModelRanks ranks_;
};
TORCH_MODULE(BertEmbeddings);

/// Bidirectional self-attention that ignores padding: [B, T, H] -> [B, T, H], before the residual.
class BertSelfAttentionImpl : public torch::nn::Module {
 public:
  /// Errors: InputError when the tensor ranks do not divide the heads.
  BertSelfAttentionImpl(const BertOptions& options, const ModelRanks& ranks);
  /// Returns this rank's heads: [B, T, H of these].
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT);

  tensor::ColumnParallelLinear query{nullptr};
  tensor::ColumnParallelLinear key{nullptr};
  tensor::ColumnParallelLinear value{nullptr};

 private:
  int64_t heads_; // of this rank
  double dropout_;
  ModelRanks ranks_;
};
TORCH_MODULE(BertSelfAttention);

/// LayerNorm(residual + dropout(dense(x))): the end of each half of a block.
class BertOutputImpl : public torch::nn::Module {
 public:
  BertOutputImpl(int64_t in, const BertOptions& options, const ModelRanks& ranks);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual);

  tensor::RowParallelLinear dense{nullptr};
  torch::nn::LayerNorm LayerNorm{nullptr};

 private:
  double dropout_;
  ModelRanks ranks_;
};
TORCH_MODULE(BertOutput);

/// Post-norm transformer block. Takes and returns hidden [B, T, H] and mask [B, T]. Its submodules have
/// Hugging Face's names: attention.self.query, attention.output.dense, intermediate.dense,
/// output.dense.
class BertBlockImpl : public torch::nn::Module {
 public:
  /// `layer`: index from 0, which decides whether it has adapters.
  explicit BertBlockImpl(const BertOptions& options, const ModelRanks& ranks = {}, int64_t layer = 0);
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT);

  BertSelfAttention self_attention{nullptr};
  BertOutput attention_output{nullptr};
  tensor::ColumnParallelLinear intermediate{nullptr};
  BertOutput output{nullptr};
};
TORCH_MODULE(BertBlock);

/// Dense layer, GELU and LayerNorm before the decoder: hidden and mask -> [B, T, H], without the mask.
class BertHeadTransformImpl : public torch::nn::Module {
 public:
  explicit BertHeadTransformImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT);

  torch::nn::Linear dense{nullptr};
  torch::nn::LayerNorm LayerNorm{nullptr};
};
TORCH_MODULE(BertHeadTransform);

/// Adds the decoder's bias to the logits [B, T, V], or to this rank's part of them.
class BertDecoderBiasImpl : public torch::nn::Module, public tensor::SplitModule {
 public:
  explicit BertDecoderBiasImpl(const BertOptions& options, const ModelRanks& ranks = {});
  at::Tensor forward(const at::Tensor& logits_BTV);
  std::map<std::string, bucket::Placement> placements() const override;

  at::Tensor bias; ///< [V], or this rank's part

 private:
  int64_t vocabulary_;
  ModelRanks ranks_;
};
TORCH_MODULE(BertDecoderBias);

/// The first token's values through a dense layer and tanh: hidden [B, T, H] and mask -> [B, H].
class BertPoolerImpl : public torch::nn::Module {
 public:
  explicit BertPoolerImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT);

  torch::nn::Linear dense{nullptr};
};
TORCH_MODULE(BertPooler);

/// Dropout and a linear layer: [B, H] -> logits [B, classes].
class BertClassifierImpl : public torch::nn::LinearImpl {
 public:
  explicit BertClassifierImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x_BH);

 private:
  double dropout_;
};
TORCH_MODULE(BertClassifier);

/// The mean over the real tokens of x [B, T, H], divided by its norm (at least 1e-12): [B, H].
at::Tensor sentence_vectors(const at::Tensor& x_BTH, const at::Tensor& mask_BT);

} // namespace trireme::models
