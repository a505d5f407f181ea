#include <trireme/config/huggingface_folder.h>
#include <trireme/config/huggingface_model.h>
#include <trireme/config/key_check.h>
#include <trireme/config/language_checks.h>
#include <trireme/config/run_types.h>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

void read_llama_keys(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  run.model.kind = ModelConfig::Kind::llama;
  run.model.traits = {.layers = true, .tensor = true, .context = true, .writes_text = true};
  const Values values(&section, "model", "llama");
  models::LlamaOptions& llama = run.model.llama;
  llama.vocab_size = 0; // the tokenizer's
  if (const auto from = read_from(section, paths, run)) {
    llama = from->llama;
  }
  llama.layers = values.get("layers", llama.layers);
  llama.hidden = values.get("hidden", llama.hidden);
  llama.heads = values.get("heads", llama.heads);
  llama.kv_heads = values.get("kv_heads", llama.kv_heads);
  llama.head_dim = values.get("head_dim", llama.head_dim);
  llama.intermediate = values.get("intermediate", llama.intermediate);
  llama.sequence_length = values.get("sequence_length", llama.sequence_length);
  llama.vocab_size = values.get("vocab_size", llama.vocab_size);
  llama.rope_theta = values.get("rope_theta", llama.rope_theta);
  if (const JsonNode* scaling = values.find("rope_scaling")) {
    llama.rope_scaling = read_rope_scaling(*scaling);
  }
  llama.max_positions = values.get("max_positions", llama.max_positions);
  llama.rms_norm_eps = values.get("rms_norm_eps", llama.rms_norm_eps);
  llama.attention_bias = values.get("attention_bias", llama.attention_bias);
  llama.attention_output_bias = values.get("attention_output_bias", llama.attention_output_bias);
  llama.mlp_bias = values.get("mlp_bias", llama.mlp_bias);
  llama.qk_norm = values.get("qk_norm", llama.qk_norm);
  llama.window = values.get("window", llama.window);
  llama.first_window_layer = values.get("first_window_layer", llama.first_window_layer);
  llama.tie_embeddings = values.get("tie_embeddings", llama.tie_embeddings);
  if (values.find("init_from") != nullptr) {
    llama.init_from = paths.one(section, "init_from");
  }
  llama.lora.init_from = paths.one(section, "adapter");
}

ordered_json write_llama_keys(const RunConfig& run) {
  const models::LlamaOptions& llama = run.model.llama;
  const auto or_null = [](int64_t value) { return value == 0 ? ordered_json(nullptr) : ordered_json(value); };
  return {{"type", "llama"},
          {"layers", llama.layers},
          {"hidden", llama.hidden},
          {"heads", llama.heads},
          {"kv_heads", or_null(llama.kv_heads)},
          {"head_dim", or_null(llama.head_dim)},
          {"intermediate", or_null(llama.intermediate)},
          {"sequence_length", llama.sequence_length},
          {"vocab_size", or_null(llama.vocab_size)},
          {"rope_theta", llama.rope_theta},
          {"rope_scaling", write_rope_scaling(llama.rope_scaling)},
          {"max_positions", or_null(llama.max_positions)},
          {"rms_norm_eps", llama.rms_norm_eps},
          {"attention_bias", llama.attention_bias},
          {"attention_output_bias", llama.attention_output_bias},
          {"mlp_bias", llama.mlp_bias},
          {"qk_norm", llama.qk_norm},
          {"window", llama.window},
          {"first_window_layer", llama.first_window_layer},
          {"tie_embeddings", llama.tie_embeddings},
          {"init_from", path_or_null(llama.init_from)},
          {"adapter", path_or_null(llama.lora.init_from)}};
}

} // namespace

RunType llama_type() {
  return {"llama", read_llama_keys, write_llama_keys, check_language};
}

} // namespace trireme::config
