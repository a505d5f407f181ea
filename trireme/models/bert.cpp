#include <trireme/models/bert.h>

#include <trireme/base/error.h>
#include <trireme/models/dropout.h>
#include <trireme/models/initialize.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

namespace trireme::models {
namespace {

namespace nn = torch::nn;

nn::LayerNorm bert_norm(int64_t hidden) {
  return nn::LayerNorm(nn::LayerNormOptions({hidden}).eps(1e-12));
}

int64_t width_of_mlp(const BertOptions& options) {
  return options.intermediate > 0 ? options.intermediate : 4 * options.hidden;
}

// Hugging Face's "attention.self.query": modules that only add their name to those inside.
nn::Module& name_only(nn::Module& parent, const std::string& name) {
  return *parent.register_module(name, std::make_shared<nn::Module>());
}

} // namespace

BertEmbeddingsImpl::BertEmbeddingsImpl(const BertOptions& options)
    : position_embeddings(register_module("position_embeddings", nn::Embedding(options.sequence_length, options.hidden))),
      token_type_embeddings(register_module("token_type_embeddings", nn::Embedding(options.segments, options.hidden))),
      LayerNorm(register_module("LayerNorm", bert_norm(options.hidden))),
      dropout_(options.dropout) {}

std::pair<at::Tensor, at::Tensor> BertEmbeddingsImpl::forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT) {
  return finish(x_BTH, mask_BT, token_type_embeddings->weight.slice(0, 0, 1));
}

std::pair<at::Tensor, at::Tensor> BertEmbeddingsImpl::forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT,
                                                              const at::Tensor& segments_BT) {
  return finish(x_BTH, mask_BT, token_type_embeddings->forward(segments_BT));
}

std::pair<at::Tensor, at::Tensor> BertEmbeddingsImpl::finish(const at::Tensor& x_BTH, const at::Tensor& mask_BT,
                                                             const at::Tensor& segment_embeddings) {
  const at::Tensor& positions = position_embeddings->weight;
  const int64_t length = x_BTH.size(1);
  if (length > positions.size(0)) {
    throw InputError("bert", concat("a sequence of ", length, " tokens was given to a model of sequence_length ", positions.size(0)));
  }
  const at::Tensor x = LayerNorm->forward(x_BTH + positions.slice(0, 0, length) + segment_embeddings);
  return {drop(x, dropout_, is_training()), mask_BT};
}

BertSelfAttentionImpl::BertSelfAttentionImpl(const BertOptions& options)
    : query(register_module("query", nn::Linear(options.hidden, options.hidden))),
      key(register_module("key", nn::Linear(options.hidden, options.hidden))),
      value(register_module("value", nn::Linear(options.hidden, options.hidden))),
      heads_(options.heads),
      dropout_(options.dropout) {}

at::Tensor BertSelfAttentionImpl::forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT) {
  const int64_t B = x_BTH.size(0);
  const int64_t T = x_BTH.size(1);
  const int64_t H = x_BTH.size(2);
  const auto split_heads = [&](nn::Linear& linear) { return linear->forward(x_BTH).view({B, T, heads_, H / heads_}).transpose(1, 2); };
  const at::Tensor allowed = mask_BT.to(at::kBool).view({B, 1, 1, T});
  const at::Tensor y = at::scaled_dot_product_attention(split_heads(query), split_heads(key), split_heads(value), allowed,
                                                        is_training() ? dropout_ : 0.0);
  return y.transpose(1, 2).reshape({B, T, H});
}

BertOutputImpl::BertOutputImpl(int64_t in, int64_t out, double dropout)
    : dense(register_module("dense", nn::Linear(in, out))), LayerNorm(register_module("LayerNorm", bert_norm(out))), dropout_(dropout) {}

at::Tensor BertOutputImpl::forward(const at::Tensor& x, const at::Tensor& residual) {
  return LayerNorm->forward(residual + drop(dense->forward(x), dropout_, is_training()));
}

BertBlockImpl::BertBlockImpl(const BertOptions& options) {
  nn::Module& attention = name_only(*this, "attention");
  self_attention = attention.register_module("self", BertSelfAttention(options));
  attention_output = attention.register_module("output", BertOutput(options.hidden, options.hidden, options.dropout));
  intermediate = name_only(*this, "intermediate").register_module("dense", nn::Linear(options.hidden, width_of_mlp(options)));
  output = register_module("output", BertOutput(width_of_mlp(options), options.hidden, options.dropout));
}

std::pair<at::Tensor, at::Tensor> BertBlockImpl::forward(const at::Tensor& x_BTH, const at::Tensor& mask_BT) {
  const at::Tensor x = attention_output->forward(self_attention->forward(x_BTH, mask_BT), x_BTH);
  return {output->forward(at::gelu(intermediate->forward(x)), x), mask_BT};
}

BertHeadTransformImpl::BertHeadTransformImpl(const BertOptions& options)
    : dense(register_module("dense", nn::Linear(options.hidden, options.hidden))),
      LayerNorm(register_module("LayerNorm", bert_norm(options.hidden))) {}

at::Tensor BertHeadTransformImpl::forward(const at::Tensor& x_BTH, const at::Tensor&) {
  return LayerNorm->forward(at::gelu(dense->forward(x_BTH)));
}

BertDecoderBiasImpl::BertDecoderBiasImpl(const BertOptions& options)
    : bias(register_parameter("bias", torch::empty({options.vocab_size}))) {}

at::Tensor BertDecoderBiasImpl::forward(const at::Tensor& logits_BTV) {
  return logits_BTV + bias;
}

void initialise_bert(const std::string& name, const at::Tensor& parameter, const BertOptions& options) {
  if (parameter.dim() == 1) {
    const std::string scale = "LayerNorm.weight";
    fill(parameter, name.size() >= scale.size() && name.compare(name.size() - scale.size(), scale.size(), scale) == 0 ? 1.0 : 0.0);
  } else {
    fill_normal(parameter, 0.02, options.seed, name);
  }
}

} // namespace trireme::models
