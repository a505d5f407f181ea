#include <trireme/models/options.h>

#include <trireme/base/error.h>

namespace trireme::models {

std::vector<LayerShape> gpt_layer_shapes(const GptOptions& options) {
  using Kind = LayerShape::Kind;
  const int64_t h = options.hidden;
  const LayerShape tokens{Kind::tokens, "transformer.wte", {{"weight", {options.vocab_size, h}}}};
  std::vector<LayerShape> shapes = {tokens,
                                    {Kind::positions, "transformer.wpe", {{"weight", {options.sequence_length, h}}}}};
  for (int64_t i = 0; i < options.layers; ++i) {
    shapes.push_back({Kind::block,
                      concat("transformer.h.", i),
                      {{"ln_1.weight", {h}},
                       {"ln_1.bias", {h}},
                       {"attn.c_attn.weight", {3 * h, h}},
                       {"attn.c_attn.bias", {3 * h}},
                       {"attn.c_proj.weight", {h, h}},
                       {"attn.c_proj.bias", {h}},
                       {"ln_2.weight", {h}},
                       {"ln_2.bias", {h}},
                       {"mlp.c_fc.weight", {4 * h, h}},
                       {"mlp.c_fc.bias", {4 * h}},
                       {"mlp.c_proj.weight", {h, 4 * h}},
                       {"mlp.c_proj.bias", {h}}}});
  }
  shapes.push_back({Kind::norm, "transformer.ln_f", {{"weight", {h}}, {"bias", {h}}}});
  shapes.push_back({Kind::head, options.tie_embeddings ? tokens.name : "lm_head", tokens.parameters});
  return shapes;
}

std::vector<LayerShape> llama_layer_shapes(const LlamaOptions& options) {
  using Kind = LayerShape::Kind;
  const int64_t h = options.hidden, mlp = options.width_of_mlp(), d = options.width_of_head();
  const int64_t queries = options.heads * d, keys = options.kv_heads_or_all() * d;
  const LayerShape tokens{Kind::tokens, "model.embed_tokens", {{"weight", {options.vocab_size, h}}}};
  std::vector<LayerShape> shapes = {tokens};
  for (int64_t i = 0; i < options.layers; ++i) {
    LayerShape& block = shapes.emplace_back(LayerShape{Kind::block, concat("model.layers.", i), {}});
    const auto add = [&](const std::string& name, std::vector<int64_t> sizes) {
      block.parameters.push_back({name, std::move(sizes)});
    };
    const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
      add(name + ".weight", {out, in});
      if (bias) {
        add(name + ".bias", {out});
      }
    };
    add("input_layernorm.weight", {h});
    linear("self_attn.q_proj", queries, h, options.attention_bias);
    linear("self_attn.k_proj", keys, h, options.attention_bias);
    linear("self_attn.v_proj", keys, h, options.attention_bias);
    linear("self_attn.o_proj", h, queries, options.attention_output_bias);
    if (options.qk_norm) {
      add("self_attn.q_norm.weight", {d});
      add("self_attn.k_norm.weight", {d});
    }
    add("post_attention_layernorm.weight", {h});
    linear("mlp.gate_proj", mlp, h, options.mlp_bias);
    linear("mlp.up_proj", mlp, h, options.mlp_bias);
    linear("mlp.down_proj", h, mlp, options.mlp_bias);
  }
  shapes.push_back({Kind::norm, "model.norm", {{"weight", {h}}}});
  shapes.push_back({Kind::head, options.tie_embeddings ? tokens.name : "lm_head", tokens.parameters});
  return shapes;
}

std::vector<LayerShape> bert_layer_shapes(const BertOptions& options) {
  using Kind = LayerShape::Kind;
  using Parameters = std::vector<LayerShape::Parameter>;
  const int64_t h = options.hidden, mlp = options.width_of_mlp();
  const auto linear = [](Parameters& to, const std::string& name, int64_t out, int64_t in) {
    to.push_back({name + ".weight", {out, in}});
    to.push_back({name + ".bias", {out}});
  };
  const auto norm = [h](Parameters& to, const std::string& name) {
    to.push_back({name + ".weight", {h}});
    to.push_back({name + ".bias", {h}});
  };
  std::vector<LayerShape> shapes = {
      {Kind::tokens, "bert.embeddings.word_embeddings", {{"weight", {options.vocab_size, h}}}},
      {Kind::positions,
       "bert.embeddings",
       {{"position_embeddings.weight", {options.sequence_length, h}},
        {"token_type_embeddings.weight", {options.segments, h}}}}};
  norm(shapes.back().parameters, "LayerNorm");
  for (int64_t i = 0; i < options.layers; ++i) {
    Parameters& block = shapes.emplace_back(LayerShape{Kind::block, concat("bert.encoder.layer.", i), {}}).parameters;
    for (const char* name : {"query", "key", "value"}) {
      linear(block, concat("attention.self.", name), h, h);
    }
    linear(block, "attention.output.dense", h, h);
    norm(block, "attention.output.LayerNorm");
    linear(block, "intermediate.dense", mlp, h);
    linear(block, "output.dense", h, mlp);
    norm(block, "output.LayerNorm");
  }
  const auto part = [&](const std::string& name) -> Parameters& {
    return shapes.emplace_back(LayerShape{Kind::head, name, {}}).parameters;
  };
  if (options.head == BertOptions::Head::masked_lm) {
    Parameters& transform = part("cls.predictions.transform");
    linear(transform, "dense", h, h);
    norm(transform, "LayerNorm");
    shapes.push_back(shapes.front());
    shapes.back().kind = Kind::head;
    part("cls.predictions").push_back({"bias", {options.vocab_size}});
  } else if (options.head == BertOptions::Head::classes) {
    linear(part("bert.pooler"), "dense", h, h);
    Parameters& classifier = part("classifier");
    classifier.push_back({"weight", {options.classes, h}});
    classifier.push_back({"bias", {options.classes}});
  }
  return shapes;
}

} // namespace trireme::models
