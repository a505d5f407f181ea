#include <trireme/models/gpt.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>
#include <trireme/models/adapters.h>
#include <trireme/models/documents.h>
#include <trireme/models/dropout.h>
#include <trireme/models/gpt_values.h>
#include <trireme/models/projection.h>
#include <trireme/parallel/context/attention.h>
#include <trireme/parallel/tensor/own_random.h>
#include <trireme/parallel/tensor/skip_init.h>

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

namespace trireme::models {
namespace {

namespace nn = torch::nn;

nn::LayerNorm gpt_norm(int64_t hidden) {
  return nn::LayerNorm(nn::LayerNormOptions({hidden}).eps(1e-5));
}

at::Tensor normalise(nn::LayerNorm& norm, const at::Tensor& x) {
  return fused::layer_norm(x, norm->weight, norm->bias, norm->options.eps());
}

} // namespace

at::Tensor GptEmbeddingImpl::forward(const at::Tensor& tokens_BT, const at::Tensor& positions_BT) {
  const at::Tensor x = wte->forward(tokens_BT);
  return drop(wpe->use([&] { return add_positions("gpt", x, wpe->weight, ranks, positions_BT); }), dropout,
              is_training(), ranks);
}

at::Tensor GptEmbeddingImpl::extend(const at::Tensor& tokens_BT, KeyValueCache& cache) {
  if (cache.reads_prompts()) {
    return forward(tokens_BT);
  }
  const at::Tensor x = wte->forward(tokens_BT);
  return wpe->use([&] { return x + at::embedding(wpe->weight, cache.positions(x.device())).unsqueeze(1); });
}

GptAttentionImpl::GptAttentionImpl(const GptOptions& options, const ModelRanks& ranks)
    : c_attn(register_module("c_attn", tensor::ColumnParallelLinear(options.hidden, 3 * options.hidden, ranks.tensor,
                                                                    /*bias=*/true, /*parts=*/3))),
      c_proj(register_module("c_proj", tensor::RowParallelLinear(options.hidden, options.hidden, ranks.tensor))),
      heads(heads_of_rank("gpt", options.heads, ranks)),
      dropout(options.dropout),
      ranks(ranks) {}

at::Tensor GptAttentionImpl::mix(const at::Tensor& x_BTH, const at::Tensor& positions_BT) {
  const auto [qkv, bias] = project(c_attn, x_BTH);
  const bool drops = dropout > 0 && is_training();
  const tensor::OwnRandom own(ranks.tensor.group.rank(), drops ? ranks.tensor.group.size() : 1,
                              qkv.device()); // masks differ between heads
  if (positions_BT.defined()) {
    std::vector<at::Tensor> mixed;
    for (const at::Tensor& document : qkv.flatten(0, 1).unsqueeze(0).split(document_lengths(positions_BT), 1)) {
      mixed.push_back(fused::causal_attention(document, bias, heads, drops ? dropout : 0.0));
    }
    return at::cat(mixed, 1).view({qkv.size(0), qkv.size(1), -1});
  }
  if (!ranks.shares_tokens()) {
    return fused::causal_attention(qkv, bias, heads, drops ? dropout : 0.0);
  }
  const std::vector<int64_t> sizes = {qkv.size(0), qkv.size(1), 3, heads, qkv.size(2) / (3 * heads)};
  const std::vector<at::Tensor> qkv_BTAD =
      (bias.defined() ? qkv + bias : qkv).view(sizes).unbind(2); // backward writes the gradient once, select's 3 times
  const auto part = [&](size_t which) { return qkv_BTAD[which].transpose(1, 2); };
  const at::Tensor y = context::attention(part(0), part(1), part(2), ranks.context,
                                          {ranks.context_kind, /*causal=*/true, drops ? dropout : 0.0});
  return y.transpose(1, 2).reshape({sizes[0], sizes[1], heads * sizes[4]});
}

at::Tensor GptAttentionImpl::extend(const at::Tensor& x_BTH, KeyValueCache& cache, int64_t layer) {
  const at::Tensor qkv = cache.padded(c_attn->forward(x_BTH));
  const std::vector<at::Tensor> parts = qkv.unflatten(-1, {3, heads, qkv.size(2) / (3 * heads)}).unbind(2);
  const auto part = [&](size_t which) { return parts[which].transpose(1, 2); };
  if (!cache.reads_prompts()) {
    return cache.attend(layer, part(0), part(1), part(2)).transpose(1, 2).flatten(2);
  }
  cache.store(layer, part(1), part(2));
  return cache.packed(fused::causal_attention(qkv, {}, heads));
}

at::Tensor GptAttentionImpl::forward(const at::Tensor& x_BTH, const at::Tensor& positions_BT) {
  return drop(c_proj->forward(mix(x_BTH, positions_BT)), dropout, is_training(), ranks);
}

GptMlpImpl::GptMlpImpl(const GptOptions& options, const ModelRanks& ranks)
    : c_fc(register_module("c_fc", tensor::ColumnParallelLinear(options.hidden, 4 * options.hidden, ranks.tensor))),
      c_proj(register_module("c_proj", tensor::RowParallelLinear(4 * options.hidden, options.hidden, ranks.tensor))),
      dropout(options.dropout),
      ranks(ranks) {}

at::Tensor GptMlpImpl::activate(const at::Tensor& x_BTH) {
  const auto [y, bias] = project(c_fc, x_BTH);
  return fused::bias_gelu(y, bias, fused::Gelu::tanh);
}

at::Tensor GptMlpImpl::forward(const at::Tensor& x_BTH, const at::Tensor& residual_BTH) {
  return add_dropped(c_proj->forward(activate(x_BTH)), residual_BTH, dropout, is_training(), ranks);
}

GptBlockImpl::GptBlockImpl(const GptOptions& options, const ModelRanks& ranks, int64_t layer)
    : ln_1(register_module("ln_1", gpt_norm(options.hidden))),
      attn(register_module("attn", GptAttention(options, ranks))),
      ln_2(register_module("ln_2", gpt_norm(options.hidden))),
      mlp(register_module("mlp", GptMlp(options, ranks))),
      dropout(options.dropout) {
  add_adapters(*this, concat("transformer.h.", layer), options.lora);
}

at::Tensor GptBlockImpl::forward(const at::Tensor& x_BTH, const at::Tensor& positions_BT) {
  const at::Tensor normal = normalise(ln_1, x_BTH);
  if (dropout > 0 && is_training()) { // between a projection's bias and the addition
    const auto [x, y] = fused::add_layer_norm(attn->forward(normal, positions_BT), x_BTH, {}, ln_2->weight, ln_2->bias,
                                              ln_2->options.eps());
    return mlp->forward(y, x);
  }
  return finish(attn->mix(normal, positions_BT), x_BTH);
}

at::Tensor GptBlockImpl::extend(const at::Tensor& x_BTH, KeyValueCache& cache, int64_t layer) {
  return finish(attn->extend(normalise(ln_1, x_BTH), cache, layer), x_BTH);
}

at::Tensor GptBlockImpl::finish(const at::Tensor& mixed, const at::Tensor& x_BTH) {
  const auto [attended, attention_bias] = project(attn->c_proj, mixed);
  const auto [x, y] =
      fused::add_layer_norm(attended, x_BTH, attention_bias, ln_2->weight, ln_2->bias, ln_2->options.eps());
  const auto [out, mlp_bias] = project(mlp->c_proj, mlp->activate(y));
  return fused::add_bias(out, x, mlp_bias);
}

GptPositionsImpl::GptPositionsImpl(const GptOptions& options, const ModelRanks& ranks)
    : weight(register_parameter("weight", torch::empty({options.sequence_length, options.hidden}))),
      dropout(options.dropout),
      ranks(ranks) {}

at::Tensor GptPositionsImpl::forward(const at::Tensor& x_BTH, const at::Tensor& positions_BT) {
  return drop(add_positions("gpt", x_BTH, weight, ranks, positions_BT), dropout, is_training(), ranks);
}

GptTrunkImpl::GptTrunkImpl(const GptOptions& options, const ModelRanks& ranks, const ModelValues& values) {
  embedding->dropout = options.dropout;
  embedding->ranks = ranks;
  int64_t layer = 0;
  for (const LayerShape& part : layer_shapes(options)) {
    const auto fill = values.of(part.name);
    switch (part.kind) {
      case LayerShape::Kind::tokens:
        embedding->wte = register_module("wte", zero::Sharded<tensor::VocabParallelEmbedding>(
                                                    fill, options.vocab_size, options.hidden, ranks.tensor));
        break;
      case LayerShape::Kind::positions:
        embedding->wpe =
            register_module("wpe", zero::Sharded<nn::Embedding>(fill, options.sequence_length, options.hidden));
        break;
      case LayerShape::Kind::block:
        h->emplace_back(fill, options, ranks, layer++);
        break;
      case LayerShape::Kind::norm:
        register_module("h", h);
        ln_f = register_module("ln_f", gpt_norm(options.hidden));
        fill(*ln_f);
        break;
      case LayerShape::Kind::head: // done by the model
        break;
    }
  }
}

at::Tensor GptTrunkImpl::forward(const at::Tensor& tokens_BT, const at::Tensor& positions_BT) {
  embedding->train(is_training());
  at::Tensor x = embedding->forward(tokens_BT, positions_BT);
  for (auto& block : *h) {
    x = positions_BT.defined() ? block->forward(x, positions_BT) : block->forward(x);
  }
  return ln_f->forward(x);
}

at::Tensor GptTrunkImpl::extend(const at::Tensor& tokens_BT, KeyValueCache& cache) {
  embedding->train(false);
  at::Tensor x = cache.packed(embedding->extend(tokens_BT, cache)).to(ln_f->weight.scalar_type()); // int8's are fp32
  int64_t layer = 0;
  for (auto& block : *h) {
    x = block->use([&] { return block->extend(x, cache, layer++); });
  }
  return ln_f->forward(cache.last_of(x));
}

GptImpl::GptImpl(const GptOptions& options, const ModelRanks& ranks) : options_(options), ranks_(ranks) {
  const ModelValues values = gpt_values(options);
  const tensor::SkipInit skip_init(!options.init_from.empty());
  transformer = register_module("transformer", GptTrunk(options, ranks, values));
  if (!options.tie_embeddings) {
    lm_head = register_module("lm_head", zero::Sharded<tensor::ColumnParallelLinear>(
                                             values.of(layer_shapes(options).back().name), options.hidden,
                                             options.vocab_size, ranks.tensor, /*bias=*/false));
  }
}

at::Tensor GptImpl::hidden(const at::Tensor& tokens_BT, const at::Tensor& positions_BT) {
  if (positions_BT.defined()) {
    check_documents("gpt", tokens_BT, positions_BT, ranks_);
  }
  return transformer->forward(own_tokens(tokens_BT, ranks_), positions_BT);
}

LanguageHead GptImpl::head() {
  return {transformer->embedding->wte, lm_head, options_.vocab_size, ranks_};
}

at::Tensor GptImpl::forward(const at::Tensor& tokens_BT, const at::Tensor& positions_BT) {
  return join_logits(head().logits(hidden(tokens_BT, positions_BT)), options_.vocab_size, ranks_);
}

at::Tensor GptImpl::extend(const at::Tensor& tokens_BT, KeyValueCache& cache) {
  return join_logits(head().logits(transformer->extend(tokens_BT, cache)), options_.vocab_size, ranks_).squeeze(1);
}

at::Tensor GptImpl::loss(const at::Tensor& tokens_BT, const at::Tensor& targets_BT, const at::Tensor& positions_BT) {
  return head().loss(hidden(tokens_BT, positions_BT), targets_BT);
}

} // namespace trireme::models
