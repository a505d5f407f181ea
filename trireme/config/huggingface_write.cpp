#include <trireme/config/huggingface_model.h>

#include <trireme/base/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace trireme::config {
namespace {

using models::LlamaOptions;
using nlohmann::ordered_json;

constexpr std::array kTypes = {"llama", "mistral", "qwen2", "qwen3"};

// Whether the modules of this model_type compute this model.
bool computes(std::string_view type, const LlamaOptions& llama) {
  const bool biases_agree = llama.attention_bias == llama.attention_output_bias;
  if (type == "llama") {
    return !llama.qk_norm && llama.window == 0 && biases_agree;
  }
  if (llama.mlp_bias) {
    return false;
  }
  if (type == "mistral") {
    return !llama.qk_norm && !llama.attention_bias && !llama.attention_output_bias && llama.first_window_layer == 0;
  }
  if (type == "qwen2") {
    return !llama.qk_norm && llama.attention_bias && !llama.attention_output_bias;
  }
  return type == "qwen3" && llama.qk_norm && biases_agree;
}

// That of the folder the model came from, if it computes the model; else the first that does.
std::string llama_type(const LlamaOptions& llama, const ordered_json& base) {
  const ordered_json before = base.value("model_type", ordered_json());
  if (before.is_string() && computes(before.get<std::string>(), llama)) {
    return before.get<std::string>();
  }
  const auto found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const char* type) { return computes(type, llama); });
  if (found == kTypes.end()) {
    throw InputError("export",
                     "no architecture of transformers (llama, mistral, qwen2, qwen3) has this combination of "
                     "attention_bias, attention_output_bias, mlp_bias, qk_norm, window and first_window_layer",
                     "Keep training it here; checkpoints hold all of it.");
  }
  return *found;
}

ordered_json rope_of(const LlamaOptions& llama) {
  ordered_json rope = write_rope_scaling(llama.rope_scaling);
  if (rope.is_null()) {
    rope = {{"rope_type", "default"}};
  }
  rope["rope_theta"] = llama.rope_theta;
  return rope;
}

void write_windows(const LlamaOptions& llama, const std::string& type, ordered_json& out) {
  for (const char* key : {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}) {
    out.erase(key);
  }
  if (type == "llama") {
    return;
  }
  const bool slides = llama.window > 0;
  out["sliding_window"] = slides ? ordered_json(llama.window) : ordered_json(nullptr);
  if (type == "mistral") {
    return;
  }
  out["use_sliding_window"] = slides;
  out["max_window_layers"] = slides ? llama.first_window_layer : llama.layers;
  ordered_json types = ordered_json::array();
  for (int64_t i = 0; i < llama.layers; ++i) {
    types.push_back(slides && i >= llama.first_window_layer ? "sliding_attention" : "full_attention");
  }
  out["layer_types"] = std::move(types);
}

void write_llama(const LlamaOptions& llama, ordered_json& out) {
  const std::string type = llama_type(llama, out);
  const char* architecture = type == "llama"     ? "LlamaForCausalLM"
                             : type == "mistral" ? "MistralForCausalLM"
                             : type == "qwen2"   ? "Qwen2ForCausalLM"
                                                 : "Qwen3ForCausalLM";
  out["architectures"] = {architecture};
  out["model_type"] = type;
  out["num_hidden_layers"] = llama.layers;
  out["hidden_size"] = llama.hidden;
  out["num_attention_heads"] = llama.heads;
  out["num_key_value_heads"] = llama.kv_heads_or_all();
  out["head_dim"] = llama.width_of_head();
  out["intermediate_size"] = llama.width_of_mlp();
  out["vocab_size"] = llama.vocab_size;
  out["max_position_embeddings"] = llama.max_positions == 0 ? llama.sequence_length : llama.max_positions;
  out["rms_norm_eps"] = llama.rms_norm_eps;
  out["hidden_act"] = "silu";
  out["tie_word_embeddings"] = llama.tie_embeddings;
  if (type != "qwen2") { // has no such key
    out["attention_bias"] = llama.attention_bias;
  }
  if (type == "llama") {
    out["mlp_bias"] = llama.mlp_bias;
  }
  out["rope_theta"] = llama.rope_theta; // read before transformers 5, with rope_scaling
  out["rope_scaling"] = write_rope_scaling(llama.rope_scaling);
  out["rope_parameters"] = rope_of(llama);
  write_windows(llama, type, out);
}

void write_gpt2(const models::GptOptions& gpt, ordered_json& out) {
  out["architectures"] = {"GPT2LMHeadModel"};
  out["model_type"] = "gpt2";
  out["n_layer"] = gpt.layers;
  out["n_embd"] = gpt.hidden;
  out["n_head"] = gpt.heads;
  out["n_positions"] = gpt.sequence_length;
  out["n_inner"] = nullptr;
  out["vocab_size"] = gpt.vocab_size;
  out["activation_function"] = "gelu_new";
  out["layer_norm_epsilon"] = 1e-5;
  out["resid_pdrop"] = out["embd_pdrop"] = out["attn_pdrop"] = gpt.dropout;
  out["tie_word_embeddings"] = gpt.tie_embeddings;
  constexpr int64_t kEndOfText = 50256; // GPT-2's
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    if (!out.contains(key)) {
      out[key] = gpt.vocab_size > kEndOfText ? ordered_json(kEndOfText) : ordered_json(nullptr);
    }
  }
}

void write_labels(int64_t classes, ordered_json& out) {
  if (out.value("id2label", ordered_json::object()).size() == static_cast<size_t>(classes)) {
    return;
  }
  ordered_json names, ids;
  for (int64_t i = 0; i < classes; ++i) {
    const std::string name = concat("LABEL_", i);
    names[std::to_string(i)] = name;
    ids[name] = i;
  }
  out.erase("num_labels");
  out["id2label"] = std::move(names);
  out["label2id"] = std::move(ids);
}

} // namespace

ordered_json write_huggingface_model(const models::BertOptions& bert, const ordered_json& base) {
  ordered_json out = base;
  const bool classifies = bert.head == models::BertOptions::Head::classes;
  out["architectures"] = {classifies ? "BertForSequenceClassification" : "BertForMaskedLM"};
  out["model_type"] = "bert";
  out["num_hidden_layers"] = bert.layers;
  out["hidden_size"] = bert.hidden;
  out["num_attention_heads"] = bert.heads;
  out["intermediate_size"] = bert.width_of_mlp();
  out["vocab_size"] = bert.vocab_size;
  out["max_position_embeddings"] = bert.sequence_length;
  out["type_vocab_size"] = bert.segments;
  out["layer_norm_eps"] = bert.layer_norm_eps;
  out["hidden_act"] = "gelu";
  out["hidden_dropout_prob"] = out["attention_probs_dropout_prob"] = out["classifier_dropout"] = bert.dropout;
  out["tie_word_embeddings"] = true;
  if (classifies) {
    write_labels(bert.classes, out);
  }
  return out;
}

ordered_json write_huggingface_model(const models::LanguageOptions& options, const ordered_json& base) {
  ordered_json out = base;
  if (const auto* const llama = std::get_if<LlamaOptions>(&options)) {
    write_llama(*llama, out);
  } else {
    write_gpt2(std::get<models::GptOptions>(options), out);
  }
  return out;
}

} // namespace trireme::config
