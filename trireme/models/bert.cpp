#include <trireme/models/bert.h>

#include <trireme/base/error.h>
#include <trireme/models/adapters.h>
#include <trireme/models/dropout.h>
#include <trireme/parallel/context/attention.h>
#include <trireme/parallel/tensor/exchange.h>
#include <trireme/parallel/tensor/linear.h>
#include <trireme/parallel/tensor/own_random.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

namespace trireme::models {
namespace {

namespace nn = torch::nn;

nn::LayerNorm bert_norm(const BertOptions& options) {
  return nn::LayerNorm(nn::LayerNormOptions({options.hidden}).eps(options.layer_norm_eps));
}

// Makes a module that only adds its name to those inside: Hugging Face's "attention.self.query".
nn::Module& name_only(nn::Module& parent, const std::string& name) {
  return *parent.register_module(name, std::make_shared<nn::Module>());
}

} // namespace

BertEmbeddingsImpl::BertEmbeddingsImpl(const BertOptions& options, const ModelRanks& ranks)
    : position_embeddings(
          register_module("position_embeddings", nn::Embedding(options.sequence_length, options.hidden))),
      token_type_embeddings(register_module("token_type_embeddings", nn::Embedding(options.segments, options.hidden))),
      LayerNorm(register_module("LayerNorm", bert_norm(options))),
      dropout_(options.dropout),
      ranks_(ranks) {}

std::pair<at::Tensor, at::Tensor> BertEmbeddingsImpl::forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT) {
  return finish(x_BTH, mask_BT, token_type_embeddings->weight.slice(0, 0, 1));
}

std::pair<at::Tensor, at::Tensor> BertEmbeddingsImpl::forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT,
                                                              const at::Tensor& segments_BT) {
  at::Tensor segments = own_tokens(segments_BT, ranks_);
  segments = ranks_.tensor.splits_sequence() ? tensor::take_part(segments, ranks_.tensor.group, 1) : segments;
  return finish(x_BTH, mask_BT, token_type_embeddings->forward(segments));
}

std::pair<at::Tensor, at::Tensor> BertEmbeddingsImpl::finish(const at::Tensor& x_BTH, const at::Tensor& mask_BT,
                                                             const at::Tensor& segment_embeddings) {
  const at::Tensor x =
      LayerNorm->forward(add_positions("bert", x_BTH, position_embeddings->weight, ranks_) + segment_embeddings);
  return {drop(x, dropout_, is_training(), ranks_), mask_BT};
}

BertSelfAttentionImpl::BertSelfAttentionImpl(const BertOptions& options, const ModelRanks& ranks)
    : query(register_module("query", tensor::ColumnParallelLinear(options.hidden, options.hidden, ranks.tensor))),
      key(register_module("key", tensor::ColumnParallelLinear(options.hidden, options.hidden, ranks.tensor))),
      value(register_module("value", tensor::ColumnParallelLinear(options.hidden, options.hidden, ranks.tensor))),
      heads_(heads_of_rank("bert", options.heads, ranks)),
      dropout_(options.dropout),
      ranks_(ranks) {}

at::Tensor BertSelfAttentionImpl::forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT) {
  const at::Tensor x = tensor::enter(x_BTH, ranks_.tensor);
  const int64_t B = x.size(0);
  const int64_t T = x.size(1);
  const int64_t H = query->weight.size(0); // of this rank's heads
  const auto split_heads = [&](tensor::ColumnParallelLinear& linear) {
    const at::Tensor y = linear->adapted(tensor::whole_linear(x, linear->weight, linear->bias, linear->fp8()), x_BTH);
    return y.view({B, T, heads_, H / heads_}).transpose(1, 2);
  };
  const bool drops = dropout_ > 0 && is_training();
  const tensor::OwnRandom own(ranks_.tensor.group.rank(), drops ? ranks_.tensor.group.size() : 1,
                              x.device()); // masks differ between heads
  if (ranks_.shares_tokens()) {
    const context::AttentionOptions options{ranks_.context_kind, /*causal=*/false, drops ? dropout_ : 0.0};
    const at::Tensor y = context::attention(split_heads(query), split_heads(key), split_heads(value), ranks_.context,
                                            options, own_tokens(mask_BT.to(at::kBool), ranks_));
    return y.transpose(1, 2).reshape({B, T, H});
  }
  const at::Tensor allowed = mask_BT.to(at::kBool).view({B, 1, 1, T});
  const at::Tensor y = at::scaled_dot_product_attention(split_heads(query), split_heads(key), split_heads(value),
                                                        allowed, drops ? dropout_ : 0.0);
  return y.transpose(1, 2).reshape({B, T, H});
}

BertOutputImpl::BertOutputImpl(int64_t in, const BertOptions& options, const ModelRanks& ranks)
    : dense(register_module("dense", tensor::RowParallelLinear(in, options.hidden, ranks.tensor))),
      LayerNorm(register_module("LayerNorm", bert_norm(options))),
      dropout_(options.dropout),
      ranks_(ranks) {}

at::Tensor BertOutputImpl::forward(const at::Tensor& x, const at::Tensor& residual) {
  return LayerNorm->forward(add_dropped(dense->forward(x), residual, dropout_, is_training(), ranks_));
}

BertBlockImpl::BertBlockImpl(const BertOptions& options, const ModelRanks& ranks, int64_t layer) {
  nn::Module& attention = name_only(*this, "attention");
  self_attention = attention.register_module("self", BertSelfAttention(options, ranks));
  attention_output = attention.register_module("output", BertOutput(options.hidden, options, ranks));
  intermediate =
      name_only(*this, "intermediate")
          .register_module("dense", tensor::ColumnParallelLinear(options.hidden, options.width_of_mlp(), ranks.tensor));
  output = register_module("output", BertOutput(options.width_of_mlp(), options, ranks));
  add_adapters(*this, concat("bert.encoder.layer.", layer), options.lora);
}

std::pair<at::Tensor, at::Tensor> BertBlockImpl::forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT) {
  const at::Tensor x = attention_output->forward(self_attention->forward(x_BTH, mask_BT), x_BTH);
  return {output->forward(at::gelu(intermediate->forward(x)), x), mask_BT};
}

BertHeadTransformImpl::BertHeadTransformImpl(const BertOptions& options)
    : dense(register_module("dense", nn::Linear(options.hidden, options.hidden))),
      LayerNorm(register_module("LayerNorm", bert_norm(options))) {}

at::Tensor BertHeadTransformImpl::forward(const at::Tensor& x_BTH, const at::Tensor&) {
  return LayerNorm->forward(at::gelu(at::linear(x_BTH, dense->weight, dense->bias)));
}

BertDecoderBiasImpl::BertDecoderBiasImpl(const BertOptions& options, const ModelRanks& ranks)
    : bias(register_parameter("bias", torch::empty({tensor::part_of(options.vocab_size, ranks.tensor).size()}))),
      vocabulary_(options.vocab_size),
      ranks_(ranks) {}

std::map<std::string, bucket::Placement> BertDecoderBiasImpl::placements() const {
  if (ranks_.tensor.alone()) {
    return {};
  }
  return {{"bias", {.global_shape = {vocabulary_}, .box_offset = {tensor::part_of(vocabulary_, ranks_.tensor).begin}}}};
}

at::Tensor BertDecoderBiasImpl::forward(const at::Tensor& logits_BTV) {
  return logits_BTV + bias;
}

BertPoolerImpl::BertPoolerImpl(const BertOptions& options)
    : dense(register_module("dense", nn::Linear(options.hidden, options.hidden))) {}

at::Tensor BertPoolerImpl::forward(const at::Tensor& x_BTH, const at::Tensor&) {
  return at::tanh(at::linear(x_BTH.select(1, 0), dense->weight, dense->bias));
}

BertClassifierImpl::BertClassifierImpl(const BertOptions& options)
    : LinearImpl(options.hidden, options.classes), dropout_(options.dropout) {}

at::Tensor BertClassifierImpl::forward(const at::Tensor& x_BH) {
  return LinearImpl::forward(drop(x_BH, dropout_, is_training()));
}

at::Tensor sentence_vectors(const at::Tensor& x_BTH, const at::Tensor& mask_BT) {
  const at::Tensor weight = mask_BT.to(x_BTH.scalar_type()).unsqueeze(-1);
  const at::Tensor mean = (x_BTH * weight).sum(1) / weight.sum(1).clamp_min(1e-9);
  return mean / mean.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-12);
}

} // namespace trireme::models
