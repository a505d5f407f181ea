#include <trireme/config/fields.h>
#include <trireme/config/huggingface_folder.h>
#include <trireme/config/language_checks.h>
#include <trireme/config/run_types.h>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

void fields(const auto& each, models::GptOptions& gpt) {
  each("layers", gpt.layers);
  each("hidden", gpt.hidden);
  each("heads", gpt.heads);
  each("sequence_length", gpt.sequence_length);
  each.or_null("vocab_size", gpt.vocab_size);
  each("tie_embeddings", gpt.tie_embeddings);
  each("dropout", gpt.dropout);
}

void read_gpt(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  run.model.kind = ModelConfig::Kind::gpt;
  run.model.traits = {.layers = true, .tensor = true, .context = true, .writes_text = true};
  const Values values(&section, "model", "gpt");
  models::GptOptions& gpt = run.model.gpt;
  gpt.vocab_size = 0; // the tokenizer's
  if (const auto from = read_from(section, paths, run)) {
    gpt = from->gpt;
  }
  fields(ReadFields(values), gpt);
  if (values.find("init_from") != nullptr) {
    gpt.init_from = paths.one(section, "init_from");
  }
  gpt.lora.init_from = paths.one(section, "adapter");
}

ordered_json write_gpt(const RunConfig& run) {
  models::GptOptions gpt = run.model.gpt;
  ordered_json out = {{"type", "gpt"}};
  fields(WriteFields(out), gpt);
  out.update({{"init_from", path_or_null(gpt.init_from)}, {"adapter", path_or_null(gpt.lora.init_from)}});
  return out;
}

} // namespace

RunType gpt_type() {
  return {"gpt", read_gpt, write_gpt, check_language};
}

} // namespace trireme::config
