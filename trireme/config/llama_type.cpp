#include <trireme/config/fields.h>
#include <trireme/config/huggingface_folder.h>
#include <trireme/config/huggingface_model.h>
#include <trireme/config/language_checks.h>
#include <trireme/config/run_types.h>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

void fields(const auto& each, models::LlamaOptions& llama) {
  each("layers", llama.layers);
  each("hidden", llama.hidden);
  each("heads", llama.heads);
  each.or_null("kv_heads", llama.kv_heads);
  each.or_null("head_dim", llama.head_dim);
  each.or_null("intermediate", llama.intermediate);
  each("sequence_length", llama.sequence_length);
  each.or_null("vocab_size", llama.vocab_size);
  each("rope_theta", llama.rope_theta);
  each.by("rope_scaling", llama.rope_scaling, read_rope_scaling, write_rope_scaling);
  each.or_null("max_positions", llama.max_positions);
  each("rms_norm_eps", llama.rms_norm_eps);
  each("attention_bias", llama.attention_bias);
  each("attention_output_bias", llama.attention_output_bias);
  each("mlp_bias", llama.mlp_bias);
  each("qk_norm", llama.qk_norm);
  each("window", llama.window);
  each("first_window_layer", llama.first_window_layer);
  each("tie_embeddings", llama.tie_embeddings);
}

void read_llama_keys(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  run.model.kind = ModelConfig::Kind::llama;
  run.model.traits = {.layers = true, .tensor = true, .context = true, .writes_text = true};
  const Values values(&section, "model", "llama");
  models::LlamaOptions& llama = run.model.llama;
  llama.vocab_size = 0; // the tokenizer's
  if (const auto from = read_from(section, paths, run)) {
    llama = from->llama;
  }
  fields(ReadFields(values), llama);
  if (values.find("init_from") != nullptr) {
    llama.init_from = paths.one(section, "init_from");
  }
  llama.lora.init_from = paths.one(section, "adapter");
}

ordered_json write_llama_keys(const RunConfig& run) {
  models::LlamaOptions llama = run.model.llama;
  ordered_json out = {{"type", "llama"}};
  fields(WriteFields(out), llama);
  out.update({{"init_from", path_or_null(llama.init_from)}, {"adapter", path_or_null(llama.lora.init_from)}});
  return out;
}

} // namespace

RunType llama_type() {
  return {"llama", read_llama_keys, write_llama_keys, check_language};
}

} // namespace trireme::config
