#include <trireme/models/gpt.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>
#include <trireme/models/dropout.h>
#include <trireme/models/gpt_values.h>

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <string>
#include <utility>

namespace trireme::models {
namespace {

namespace nn = torch::nn;

nn::LayerNorm gpt_norm(int64_t hidden) {
  return nn::LayerNorm(nn::LayerNormOptions({hidden}).eps(1e-5));
}

at::Tensor normalise(nn::LayerNorm& norm, const at::Tensor& x) {
  return fused::layer_norm(x, norm->weight, norm->bias, norm->options.eps());
}

void check_length(int64_t length, const at::Tensor& positions) {
  if (length > positions.size(0)) {
    throw InputError("gpt", concat("a sequence of ", length, " tokens was given to a model of sequence_length ", positions.size(0)));
  }
}

// Initialises a part of the model that may be sharded right afterwards.
auto values_of(const GptValues& values, std::string prefix) {
  return [&values, prefix = std::move(prefix)](const nn::Module& module) { values.fill(prefix, module); };
}

} // namespace

at::Tensor GptEmbeddingImpl::forward(const at::Tensor& tokens_BT) {
  const int64_t length = tokens_BT.size(1);
  check_length(length, wpe->weight);
  const at::Tensor x = wte->forward(tokens_BT);
  return drop(wpe->use([&] { return x + wpe->weight.slice(0, 0, length); }), dropout, is_training());
}

GptAttentionImpl::GptAttentionImpl(const GptOptions& options)
    : c_attn(register_module("c_attn", nn::Linear(options.hidden, 3 * options.hidden))),
      c_proj(register_module("c_proj", nn::Linear(options.hidden, options.hidden))),
      heads(options.heads),
      dropout(options.dropout) {}

at::Tensor GptAttentionImpl::mix(const at::Tensor& x_BTH) {
  return fused::causal_attention(at::linear(x_BTH, c_attn->weight), c_attn->bias, heads, is_training() ? dropout : 0.0);
}

at::Tensor GptAttentionImpl::forward(const at::Tensor& x_BTH) {
  return drop(c_proj->forward(mix(x_BTH)), dropout, is_training());
}

GptMlpImpl::GptMlpImpl(const GptOptions& options)
    : c_fc(register_module("c_fc", nn::Linear(options.hidden, 4 * options.hidden))),
      c_proj(register_module("c_proj", nn::Linear(4 * options.hidden, options.hidden))),
      dropout(options.dropout) {}

at::Tensor GptMlpImpl::activate(const at::Tensor& x_BTH) {
  return fused::bias_gelu(at::linear(x_BTH, c_fc->weight), c_fc->bias, fused::Gelu::tanh);
}

at::Tensor GptMlpImpl::forward(const at::Tensor& x_BTH) {
  return drop(c_proj->forward(activate(x_BTH)), dropout, is_training());
}

GptBlockImpl::GptBlockImpl(const GptOptions& options)
    : ln_1(register_module("ln_1", gpt_norm(options.hidden))),
      attn(register_module("attn", GptAttention(options))),
      ln_2(register_module("ln_2", gpt_norm(options.hidden))),
      mlp(register_module("mlp", GptMlp(options))),
      dropout(options.dropout) {}

at::Tensor GptBlockImpl::forward(const at::Tensor& x_BTH) {
  const at::Tensor normal = normalise(ln_1, x_BTH);
  if (dropout > 0 && is_training()) { // between a projection's bias and the addition
    const auto [x, y] = fused::add_layer_norm(attn->forward(normal), x_BTH, {}, ln_2->weight, ln_2->bias, ln_2->options.eps());
    return x + mlp->forward(y);
  }
  const auto [x, y] = fused::add_layer_norm(at::linear(attn->mix(normal), attn->c_proj->weight), x_BTH, attn->c_proj->bias, ln_2->weight, ln_2->bias,
                                            ln_2->options.eps());
  return fused::add_bias(at::linear(mlp->activate(y), mlp->c_proj->weight), x, mlp->c_proj->bias);
}

GptPositionsImpl::GptPositionsImpl(const GptOptions& options)
    : weight(register_parameter("weight", torch::empty({options.sequence_length, options.hidden}))), dropout(options.dropout) {}

at::Tensor GptPositionsImpl::forward(const at::Tensor& x_BTH) {
  check_length(x_BTH.size(1), weight);
  return drop(x_BTH + weight.slice(0, 0, x_BTH.size(1)), dropout, is_training());
}

GptTrunkImpl::GptTrunkImpl(const GptOptions& options, const GptValues& values) {
  embedding->dropout = options.dropout;
  for (const GptPart& part : gpt_parts(options)) {
    const auto fill = values_of(values, part.name);
    switch (part.kind) {
      case GptPart::Kind::tokens:
        embedding->wte = register_module("wte", zero::Sharded<nn::Embedding>(fill, options.vocab_size, options.hidden));
        break;
      case GptPart::Kind::positions:
        embedding->wpe = register_module("wpe", zero::Sharded<nn::Embedding>(fill, options.sequence_length, options.hidden));
        break;
      case GptPart::Kind::block:
        h->emplace_back(fill, options);
        break;
      case GptPart::Kind::norm:
        register_module("h", h);
        ln_f = register_module("ln_f", gpt_norm(options.hidden));
        fill(*ln_f);
        break;
      case GptPart::Kind::head: // the model's
        break;
    }
  }
}

at::Tensor GptTrunkImpl::forward(const at::Tensor& tokens_BT) {
  embedding->train(is_training());
  at::Tensor x = embedding->forward(tokens_BT);
  for (auto& block : *h) {
    x = block->forward(x);
  }
  return ln_f->forward(x);
}

GptImpl::GptImpl(const GptOptions& options) : options_(options) {
  const GptValues values(options);
  transformer = register_module("transformer", GptTrunk(options, values));
  if (!options.tie_embeddings) {
    lm_head = register_module("lm_head", zero::Sharded<nn::Linear>(values_of(values, gpt_parts(options).back().name),
                                                                   nn::LinearOptions(options.hidden, options.vocab_size).bias(false)));
  }
}

at::Tensor GptImpl::forward(const at::Tensor& tokens_BT) {
  const at::Tensor x = transformer->forward(tokens_BT);
  auto& wte = transformer->embedding->wte;
  return options_.tie_embeddings ? wte->use([&] { return at::linear(x, wte->weight); }) : lm_head->forward(x);
}

at::Tensor GptImpl::loss(const at::Tensor& tokens_BT, const at::Tensor& targets_BT) {
  const at::Tensor logits = forward(tokens_BT);
  return fused::cross_entropy(logits.view({-1, logits.size(-1)}), targets_BT.reshape({-1}), at::Reduction::Mean, -100, fused::Logits::overwrite);
}

} // namespace trireme::models
