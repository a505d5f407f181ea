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

} // namespace trireme::models
