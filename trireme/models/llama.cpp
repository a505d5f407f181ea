#include <trireme/models/llama.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>
#include <trireme/models/adapters.h>
#include <trireme/models/documents.h>
#include <trireme/models/llama_values.h>
#include <trireme/parallel/tensor/exchange.h>
#include <trireme/parallel/tensor/skip_init.h>

#include <ATen/ATen.h>

#include <tuple>
#include <utility>
#include <vector>

namespace trireme::models {
namespace {

tensor::ParallelAttentionOptions attention_options(const LlamaOptions& options, const ModelRanks& ranks,
                                                   int64_t layer) {
  return {.hidden = options.hidden,
          .heads = options.heads,
          .kv_heads = options.kv_heads_or_all(),
          .head_size = options.width_of_head(),
          .bias = options.attention_bias,
          .output_bias = options.attention_output_bias,
          .window = layer >= options.first_window_layer ? options.window : 0,
          .context = ranks.context,
          .context_kind = ranks.context_kind};
}

} // namespace

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaOptions& options, const ModelRanks& ranks, int64_t layer,
                                       std::shared_ptr<const RotaryPositions> positions)
    : ParallelAttentionImpl(attention_options(options, ranks, layer), ranks.tensor),
      positions_(std::move(positions)),
      ranks_(ranks.tensor) {
  if (options.qk_norm) {
    q_norm = register_module("q_norm", RmsNorm(options.width_of_head(), options.rms_norm_eps));
    k_norm = register_module("k_norm", RmsNorm(options.width_of_head(), options.rms_norm_eps));
  }
}

at::Tensor LlamaAttentionImpl::normalise(RmsNorm& norm, const at::Tensor& x_BATD) const {
  // Where the sequence is split, the engine sums the gradients of all parameters that are not.
  const at::Tensor weight = ranks_.splits_sequence() ? norm->weight : tensor::copy_to_ranks(norm->weight, ranks_.group);
  return fused::rms_norm(x_BATD.transpose(1, 2), weight, norm->eps).transpose(1, 2);
}

LlamaAttentionImpl::Heads LlamaAttentionImpl::normalised(const at::Tensor& x_BTH) {
  Heads heads = project(x_BTH);
  if (q_norm) {
    heads.q = normalise(q_norm, heads.q);
    heads.k = normalise(k_norm, heads.k);
  }
  return heads;
}

// Each document alone, as rows that follow one another: views, but for the result.
at::Tensor LlamaAttentionImpl::mix_documents(const Heads& heads, const at::Tensor& positions_BT) {
  const auto in_one_row = [](const at::Tensor& x_BATD) { return x_BATD.transpose(0, 1).flatten(1, 2).unsqueeze(0); };
  const auto [cos, sin] = positions_->of(positions_BT.flatten(), positions_BT.size(1));
  const auto [q_1AND, k_1AND] = fused::rotate(in_one_row(heads.q), in_one_row(heads.k), cos, sin);
  const std::vector<int64_t> lengths = document_lengths(positions_BT);
  const auto q = q_1AND.split(lengths, 2);
  const auto k = k_1AND.split(lengths, 2);
  const auto v = in_one_row(heads.v).split(lengths, 2);
  std::vector<at::Tensor> mixed;
  for (size_t i = 0; i < lengths.size(); ++i) {
    mixed.push_back(mix({q[i], k[i], v[i]}));
  }
  return at::cat(mixed, 1).view({positions_BT.size(0), positions_BT.size(1), -1});
}

at::Tensor LlamaAttentionImpl::forward(const at::Tensor& x_BTH, const at::Tensor& positions_BT) {
  Heads heads = normalised(x_BTH);
  if (positions_BT.defined()) {
    return o_proj->forward(mix_documents(heads, positions_BT));
  }
  const auto [cos, sin] = positions_->of(heads.q.size(2), heads.q.device());
  std::tie(heads.q, heads.k) = fused::rotate(heads.q, heads.k, cos, sin);
  return o_proj->forward(mix(heads));
}

at::Tensor LlamaAttentionImpl::extend(const at::Tensor& x_BTH, KeyValueCache& cache, int64_t layer) {
  Heads heads = normalised(x_BTH);
  if (!cache.reads_prompts()) {
    const auto [cos, sin] = positions_->of(cache.reach(), heads.q.device());
    const at::Tensor mixed = cache.attend(layer, heads.q, heads.k, heads.v, cos, sin, options().window);
    return o_proj->forward(mixed.transpose(1, 2).flatten(2));
  }
  for (at::Tensor* const part : {&heads.q, &heads.k, &heads.v}) {
    const int64_t count = part->size(1);
    *part = cache.padded(part->transpose(1, 2).flatten(2)).unflatten(2, {count, part->size(3)}).transpose(1, 2);
  }
  const auto [cos, sin] = positions_->of(heads.q.size(2), heads.q.device());
  std::tie(heads.q, heads.k) = fused::rotate(heads.q, heads.k, cos, sin);
  cache.store(layer, heads.k, heads.v);
  return o_proj->forward(cache.packed(mix(heads)));
}

LlamaBlockImpl::LlamaBlockImpl(const LlamaOptions& options, const ModelRanks& ranks, int64_t layer,
                               const std::shared_ptr<const RotaryPositions>& positions)
    : input_layernorm(register_module("input_layernorm", RmsNorm(options.hidden, options.rms_norm_eps))),
      self_attn(register_module("self_attn", LlamaAttention(options, ranks, layer, positions))),
      post_attention_layernorm(
          register_module("post_attention_layernorm", RmsNorm(options.hidden, options.rms_norm_eps))),
      mlp(register_module("mlp", tensor::ParallelMlp(tensor::ParallelMlpOptions{.hidden = options.hidden,
                                                                                .intermediate = options.width_of_mlp(),
                                                                                .bias = options.mlp_bias},
                                                     ranks.tensor))) {
  add_adapters(*this, concat("model.layers.", layer), options.lora);
}

at::Tensor LlamaBlockImpl::forward(const at::Tensor& x_BTH, const at::Tensor& positions_BT) {
  return finish(self_attn->forward(input_layernorm->forward(x_BTH), positions_BT), x_BTH);
}

at::Tensor LlamaBlockImpl::extend(const at::Tensor& x_BTH, KeyValueCache& cache, int64_t layer) {
  return finish(self_attn->extend(input_layernorm->forward(x_BTH), cache, layer), x_BTH);
}

at::Tensor LlamaBlockImpl::finish(const at::Tensor& attended, const at::Tensor& x_BTH) {
  const auto [x, y] =
      fused::add_rms_norm(attended, x_BTH, post_attention_layernorm->weight, post_attention_layernorm->eps);
  return x + mlp->forward(y);
}

LlamaTrunkImpl::LlamaTrunkImpl(const LlamaOptions& options, const ModelRanks& ranks, const ModelValues& values) {
  const auto positions = std::make_shared<const RotaryPositions>(options, ranks);
  int64_t layer = 0;
  for (const LayerShape& part : layer_shapes(options)) {
    const auto fill = values.of(part.name);
    switch (part.kind) {
      case LayerShape::Kind::tokens:
        embed_tokens = register_module("embed_tokens", zero::Sharded<tensor::VocabParallelEmbedding>(
                                                           fill, options.vocab_size, options.hidden, ranks.tensor));
        break;
      case LayerShape::Kind::block:
        layers->emplace_back(fill, options, ranks, layer++, positions);
        break;
      case LayerShape::Kind::norm:
        register_module("layers", layers);
        norm = register_module("norm", RmsNorm(options.hidden, options.rms_norm_eps));
        fill(*norm);
        break;
      case LayerShape::Kind::positions: // rotary
      case LayerShape::Kind::head:      // done by the model
        break;
    }
  }
}

at::Tensor LlamaTrunkImpl::forward(const at::Tensor& tokens_BT, const at::Tensor& positions_BT) {
  at::Tensor x = embed_tokens->forward(tokens_BT);
  for (auto& layer : *layers) {
    x = positions_BT.defined() ? layer->forward(x, positions_BT) : layer->forward(x);
  }
  return norm->forward(x);
}

at::Tensor LlamaTrunkImpl::extend(const at::Tensor& tokens_BT, KeyValueCache& cache) {
  at::Tensor x = cache.packed(embed_tokens->forward(tokens_BT)).to(norm->weight.scalar_type()); // int8's are fp32
  int64_t index = 0;
  for (auto& layer : *layers) {
    x = layer->use([&] { return layer->extend(x, cache, index++); });
  }
  return norm->forward(cache.last_of(x));
}

LlamaImpl::LlamaImpl(const LlamaOptions& options, const ModelRanks& ranks) : options_(options), ranks_(ranks) {
  const ModelValues values = llama_values(options);
  const tensor::SkipInit skip_init(!options.init_from.empty());
  model = register_module("model", LlamaTrunk(options, ranks, values));
  if (!options.tie_embeddings) {
    lm_head = register_module("lm_head", zero::Sharded<tensor::ColumnParallelLinear>(
                                             values.of(layer_shapes(options).back().name), options.hidden,
                                             options.vocab_size, ranks.tensor, /*bias=*/false));
  }
}

at::Tensor LlamaImpl::hidden(const at::Tensor& tokens_BT, const at::Tensor& positions_BT) {
  if (positions_BT.defined()) {
    check_documents("llama", tokens_BT, positions_BT, ranks_);
  }
  return model->forward(own_tokens(tokens_BT, ranks_), positions_BT);
}

LanguageHead LlamaImpl::head() {
  return {model->embed_tokens, lm_head, options_.vocab_size, ranks_};
}

at::Tensor LlamaImpl::forward(const at::Tensor& tokens_BT, const at::Tensor& positions_BT) {
  return join_logits(head().logits(hidden(tokens_BT, positions_BT)), options_.vocab_size, ranks_);
}

at::Tensor LlamaImpl::extend(const at::Tensor& tokens_BT, KeyValueCache& cache) {
  return join_logits(head().logits(model->extend(tokens_BT, cache)), options_.vocab_size, ranks_).squeeze(1);
}

at::Tensor LlamaImpl::loss(const at::Tensor& tokens_BT, const at::Tensor& targets_BT, const at::Tensor& positions_BT) {
  return head().loss(hidden(tokens_BT, positions_BT), targets_BT);
}

} // namespace trireme::models
