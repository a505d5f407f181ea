#include <trireme/models/options.h>

#include <trireme/base/error.h>

namespace trireme::models {
namespace {

using Kind = LayerShape::Kind;
using Split = LayerShape::Parameter::Split;

constexpr const char* kLoraA = ".lora_A.weight";
constexpr const char* kLoraB = ".lora_B.weight";
constexpr const char* kClassifier = "classifier";

// Adds weight [out, in], bias [out] and adapter of a linear layer of a block.
void add_linear(LayerShape& layer, const LoraOptions& lora, const std::string& name, int64_t out, int64_t in, bool bias,
                Split split) {
  layer.parameters.push_back({name + ".weight", {out, in}, split});
  if (bias) {
    layer.parameters.push_back({name + ".bias", {out}, split == Split::rows ? split : Split::none});
  }
  if (lora.layers.contains(concat(layer.name, '.', name))) {
    layer.parameters.push_back({name + kLoraA, {lora.rank, in}, split == Split::columns ? split : Split::none});
    layer.parameters.push_back({name + kLoraB, {out, lora.rank}, split == Split::rows ? split : Split::none});
  }
}

void add_norm(LayerShape& layer, const std::string& name, int64_t size, bool bias) {
  layer.parameters.push_back({name + ".weight", {size}});
  if (bias) {
    layer.parameters.push_back({name + ".bias", {size}});
  }
}

LayerShape gpt_block(const TransformerShape& shape, int64_t i) {
  const int64_t h = shape.hidden;
  LayerShape block{Kind::block, concat("transformer.h.", i), {}};
  add_norm(block, "ln_1", h, true);
  add_linear(block, shape.lora, "attn.c_attn", 3 * h, h, true, Split::rows);
  add_linear(block, shape.lora, "attn.c_proj", h, h, true, Split::columns);
  add_norm(block, "ln_2", h, true);
  add_linear(block, shape.lora, "mlp.c_fc", 4 * h, h, true, Split::rows);
  add_linear(block, shape.lora, "mlp.c_proj", h, 4 * h, true, Split::columns);
  return block;
}

LayerShape llama_block(const TransformerShape& shape, int64_t i) {
  const int64_t h = shape.hidden, mlp = shape.width_of_mlp();
  const int64_t queries = shape.query_width(), keys = shape.key_width();
  LayerShape block{Kind::block, concat("model.layers.", i), {}};
  add_norm(block, "input_layernorm", h, false);
  add_linear(block, shape.lora, "self_attn.q_proj", queries, h, shape.attention_bias, Split::rows);
  add_linear(block, shape.lora, "self_attn.k_proj", keys, h, shape.attention_bias, Split::rows);
  add_linear(block, shape.lora, "self_attn.v_proj", keys, h, shape.attention_bias, Split::rows);
  add_linear(block, shape.lora, "self_attn.o_proj", h, queries, shape.attention_output_bias, Split::columns);
  if (shape.qk_norm) {
    add_norm(block, "self_attn.q_norm", shape.width_of_head(), false);
    add_norm(block, "self_attn.k_norm", shape.width_of_head(), false);
  }
  add_norm(block, "post_attention_layernorm", h, false);
  add_linear(block, shape.lora, "mlp.gate_proj", mlp, h, shape.mlp_bias, Split::rows);
  add_linear(block, shape.lora, "mlp.up_proj", mlp, h, shape.mlp_bias, Split::rows);
  add_linear(block, shape.lora, "mlp.down_proj", h, mlp, shape.mlp_bias, Split::columns);
  return block;
}

LayerShape bert_block(const BertOptions& options, int64_t i) {
  const int64_t h = options.hidden, mlp = options.width_of_mlp();
  LayerShape block{Kind::block, concat("bert.encoder.layer.", i), {}};
  for (const char* name : {"query", "key", "value"}) {
    add_linear(block, options.lora, concat("attention.self.", name), h, h, true, Split::rows);
  }
  add_linear(block, options.lora, "attention.output.dense", h, h, true, Split::columns);
  add_norm(block, "attention.output.LayerNorm", h, true);
  add_linear(block, options.lora, "intermediate.dense", mlp, h, true, Split::rows);
  add_linear(block, options.lora, "output.dense", h, mlp, true, Split::columns);
  add_norm(block, "output.LayerNorm", h, true);
  return block;
}

} // namespace

TransformerShape shape_of(const GptOptions& options) {
  TransformerShape shape;
  shape.layers = options.layers;
  shape.hidden = options.hidden;
  shape.heads = options.heads;
  shape.sequence_length = options.sequence_length;
  shape.vocab_size = options.vocab_size;
  shape.tie_embeddings = options.tie_embeddings;
  shape.dropout = options.dropout;
  shape.lora = options.lora;
  return shape;
}

TransformerShape shape_of(const LlamaOptions& options) {
  TransformerShape shape;
  shape.family = TransformerShape::Family::llama;
  shape.layers = options.layers;
  shape.hidden = options.hidden;
  shape.heads = options.heads;
  shape.kv_heads = options.kv_heads;
  shape.head_dim = options.head_dim;
  shape.intermediate = options.width_of_mlp();
  shape.sequence_length = options.sequence_length;
  shape.vocab_size = options.vocab_size;
  shape.tie_embeddings = options.tie_embeddings;
  shape.attention_bias = options.attention_bias;
  shape.attention_output_bias = options.attention_output_bias;
  shape.mlp_bias = options.mlp_bias;
  shape.qk_norm = options.qk_norm;
  shape.lora = options.lora;
  return shape;
}

TransformerShape shape_of(const BertOptions& options) {
  TransformerShape shape;
  shape.family = TransformerShape::Family::bert;
  shape.layers = options.layers;
  shape.hidden = options.hidden;
  shape.heads = options.heads;
  shape.intermediate = options.width_of_mlp();
  shape.sequence_length = options.sequence_length;
  shape.vocab_size = options.vocab_size;
  shape.dropout = options.dropout;
  shape.attention_bias = shape.attention_output_bias = shape.mlp_bias = true;
  shape.lora = options.lora;
  return shape;
}

TransformerShape shape_of(const LanguageOptions& options) {
  return std::visit([](const auto& family) { return shape_of(family); }, options);
}

std::vector<LayerShape> layer_shapes(const TransformerShape& shape) {
  const bool llama = shape.family == TransformerShape::Family::llama;
  const int64_t h = shape.hidden;
  const LayerShape tokens{
      Kind::tokens, llama ? "model.embed_tokens" : "transformer.wte", {{"weight", {shape.vocab_size, h}, Split::rows}}};
  std::vector<LayerShape> layers = {tokens};
  if (!llama) {
    layers.push_back({Kind::positions, "transformer.wpe", {{"weight", {shape.sequence_length, h}}}});
  }
  for (int64_t i = 0; i < shape.layers; ++i) {
    layers.push_back(llama ? llama_block(shape, i) : gpt_block(shape, i));
  }
  LayerShape& norm = layers.emplace_back(LayerShape{Kind::norm, llama ? "model.norm" : "transformer.ln_f", {}});
  norm.parameters.push_back({"weight", {h}});
  if (!llama) {
    norm.parameters.push_back({"bias", {h}});
  }
  layers.push_back({Kind::head, shape.tie_embeddings ? tokens.name : "lm_head", tokens.parameters});
  return layers;
}

bool is_adapter(std::string_view parameter) {
  return parameter.ends_with(kLoraA) || parameter.ends_with(kLoraB);
}

bool LoraOptions::trains(std::string_view parameter) const {
  return is_adapter(parameter) || whole_layers.contains(std::string(parameter.substr(0, parameter.rfind('.'))));
}

std::vector<std::string> linear_names(const std::vector<LayerShape>& shapes) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> names;
  for (const LayerShape& layer : shapes) {
    for (const LayerShape::Parameter& parameter : layer.parameters) {
      if (layer.kind == Kind::block && parameter.sizes.size() == 2 && !is_adapter(parameter.name)) {
        names.push_back(concat(layer.name, '.', parameter.name.substr(0, parameter.name.size() - kWeight.size())));
      }
    }
  }
  return names;
}

std::set<std::string> layers_beside_adapters(const std::vector<LayerShape>& shapes) {
  std::set<std::string> names;
  for (const LayerShape& layer : shapes) {
    if (layer.name == kClassifier) {
      names.insert(layer.name);
    }
  }
  return names;
}

std::vector<LayerShape> bert_layer_shapes(const BertOptions& options) {
  const int64_t h = options.hidden;
  std::vector<LayerShape> shapes = {
      {Kind::tokens, "bert.embeddings.word_embeddings", {{"weight", {options.vocab_size, h}, Split::rows}}},
      {Kind::positions,
       "bert.embeddings",
       {{"position_embeddings.weight", {options.sequence_length, h}},
        {"token_type_embeddings.weight", {options.segments, h}}}}};
  add_norm(shapes.back(), "LayerNorm", h, true);
  for (int64_t i = 0; i < options.layers; ++i) {
    shapes.push_back(bert_block(options, i));
  }
  const auto part = [&](const std::string& name) -> LayerShape& {
    return shapes.emplace_back(LayerShape{Kind::head, name, {}});
  };
  if (options.head == BertOptions::Head::masked_lm) {
    LayerShape& transform = part("cls.predictions.transform");
    add_linear(transform, {}, "dense", h, h, true, Split::none);
    add_norm(transform, "LayerNorm", h, true);
    shapes.push_back(shapes.front());
    shapes.back().kind = Kind::head;
    part("cls.predictions").parameters.push_back({"bias", {options.vocab_size}, Split::rows});
  } else if (options.head == BertOptions::Head::classes) {
    add_linear(part("bert.pooler"), {}, "dense", h, h, true, Split::none);
    part(kClassifier).parameters = {{"weight", {options.classes, h}}, {"bias", {options.classes}}};
  }
  return shapes;
}

} // namespace trireme::models
