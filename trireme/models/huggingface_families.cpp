#include <trireme/models/huggingface_families.h>

namespace trireme::models {

const HuggingFaceFamily& gpt2_family() {
  constexpr ConfigKey layers{"n_layer", "layers"}, hidden{"n_embd", "hidden"}, vocabulary{"vocab_size", "vocab_size"},
      positions{"n_positions", "sequence_length"}, tied{"tie_word_embeddings", "tie_embeddings"};
  static const HuggingFaceFamily family{.where = "gpt",
                                        .prefix = "transformer.",
                                        .embedding = "transformer.wte.weight",
                                        .head = "lm_head.weight",
                                        .blocks = "h.",
                                        .rows = {{"wte.weight", {}, {vocabulary, hidden}},
                                                 {"wpe.weight", {}, {positions, hidden}},
                                                 {"lm_head.weight", tied, {vocabulary, hidden}},
                                                 {".weight", {}, {hidden, hidden}}, // of blocks: multiples of it
                                                 {".bias", {}, {hidden}}},
                                        .layers = layers,
                                        .optional = {".attn.bias", ".attn.masked_bias"},
                                        .transposes_blocks = true};
  return family;
}

const HuggingFaceFamily& llama_family() {
  constexpr ConfigKey layers{"num_hidden_layers", "layers"}, hidden{"hidden_size", "hidden"},
      vocabulary{"vocab_size", "vocab_size"}, heads{"num_attention_heads\" times \"head_dim", "heads"},
      kv_heads{"num_key_value_heads\" times \"head_dim", "kv_heads"}, width{"intermediate_size", "intermediate"},
      head_dim{"head_dim", "head_dim"}, tied{"tie_word_embeddings", "tie_embeddings"},
      attention_bias{"attention_bias", "attention_bias"}, output_bias{"attention_bias", "attention_output_bias"},
      mlp_bias{"mlp_bias", "mlp_bias"}, qk_norm{"model_type", "qk_norm"};
  static const HuggingFaceFamily family{.where = "llama",
                                        .prefix = "model.",
                                        .embedding = "model.embed_tokens.weight",
                                        .head = "lm_head.weight",
                                        .blocks = "layers.",
                                        .rows = {{"embed_tokens.weight", {}, {vocabulary, hidden}},
                                                 {"lm_head.weight", tied, {vocabulary, hidden}},
                                                 {"q_proj.weight", {}, {heads, hidden}},
                                                 {"k_proj.weight", {}, {kv_heads, hidden}},
                                                 {"v_proj.weight", {}, {kv_heads, hidden}},
                                                 {"o_proj.weight", {}, {hidden, heads}},
                                                 {"q_proj.bias", attention_bias, {heads}},
                                                 {"k_proj.bias", attention_bias, {kv_heads}},
                                                 {"v_proj.bias", attention_bias, {kv_heads}},
                                                 {"o_proj.bias", output_bias, {hidden}},
                                                 {"q_norm.weight", qk_norm, {head_dim}},
                                                 {"k_norm.weight", qk_norm, {head_dim}},
                                                 {"gate_proj.weight", {}, {width, hidden}},
                                                 {"up_proj.weight", {}, {width, hidden}},
                                                 {"down_proj.weight", {}, {hidden, width}},
                                                 {"gate_proj.bias", mlp_bias, {width}},
                                                 {"up_proj.bias", mlp_bias, {width}},
                                                 {"down_proj.bias", mlp_bias, {hidden}},
                                                 {"norm.weight", {}, {hidden}}},
                                        .layers = layers,
                                        .optional = {".rotary_emb.inv_freq"}};
  return family;
}

const HuggingFaceFamily& bert_family() {
  constexpr ConfigKey layers{"num_hidden_layers", "layers"}, hidden{"hidden_size", "hidden"},
      vocabulary{"vocab_size", "vocab_size"}, width{"intermediate_size", "intermediate"},
      positions{"max_position_embeddings", "sequence_length"}, segments{"type_vocab_size", "segments"},
      classes{"num_labels", "classes"}, architecture{"architectures", "head"};
  static const HuggingFaceFamily family{
      .where = "bert",
      .prefix = "bert.",
      .embedding = "bert.embeddings.word_embeddings.weight",
      .head = "cls.predictions.decoder.weight",
      .blocks = "encoder.layer.",
      .rows = {{"word_embeddings.weight", {}, {vocabulary, hidden}},
               {"position_embeddings.weight", {}, {positions, hidden}},
               {"token_type_embeddings.weight", {}, {segments, hidden}},
               {"intermediate.dense.weight", {}, {width, hidden}},
               {"intermediate.dense.bias", {}, {width}},
               {"attention.output.dense.weight", {}, {hidden, hidden}},
               {"output.dense.weight", {}, {hidden, width}},
               {"cls.predictions.bias", architecture, {vocabulary}},
               {"pooler.dense.weight", architecture, {hidden, hidden}},
               {"pooler.dense.bias", architecture, {hidden}},
               {"transform.dense.weight", architecture, {hidden, hidden}},
               {"transform.dense.bias", architecture, {hidden}},
               {"transform.LayerNorm.weight", architecture, {hidden}},
               {"transform.LayerNorm.bias", architecture, {hidden}},
               {"classifier.weight", architecture, {classes, hidden}},
               {"classifier.bias", architecture, {classes}},
               {".weight", {}, {hidden, hidden}},
               {".bias", {}, {hidden}}},
      .layers = layers,
      .optional = {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias", "cls.predictions.bias",
                   "cls.predictions.decoder.bias", "transform.dense.weight", "transform.dense.bias",
                   "transform.LayerNorm.weight", "transform.LayerNorm.bias", "transform.LayerNorm.gamma",
                   "transform.LayerNorm.beta", "cls.seq_relationship.weight", "cls.seq_relationship.bias"},
      .may_be_new = {"classifier.", "bert.pooler."},
      .old_endings = {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}}};
  return family;
}

} // namespace trireme::models
