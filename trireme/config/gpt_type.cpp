#include <trireme/config/huggingface_folder.h>
#include <trireme/config/key_check.h>
#include <trireme/config/language_checks.h>
#include <trireme/config/run_types.h>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

void read_gpt(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  run.model.kind = ModelConfig::Kind::gpt;
  run.model.traits = {.layers = true, .tensor = true, .context = true, .writes_text = true};
  const Values values(&section, "model", "gpt");
  models::GptOptions& gpt = run.model.gpt;
  gpt.vocab_size = 0; // the tokenizer's
  if (const auto from = read_from(section, paths, run)) {
    gpt = from->gpt;
  }
  gpt.layers = values.get("layers", gpt.layers);
  gpt.hidden = values.get("hidden", gpt.hidden);
  gpt.heads = values.get("heads", gpt.heads);
  gpt.sequence_length = values.get("sequence_length", gpt.sequence_length);
  gpt.vocab_size = values.get("vocab_size", gpt.vocab_size);
  gpt.tie_embeddings = values.get("tie_embeddings", gpt.tie_embeddings);
  gpt.dropout = values.get("dropout", gpt.dropout);
  if (values.find("init_from") != nullptr) {
    gpt.init_from = paths.one(section, "init_from");
  }
  gpt.lora.init_from = paths.one(section, "adapter");
}

ordered_json write_gpt(const RunConfig& run) {
  const models::GptOptions& gpt = run.model.gpt;
  return {{"type", "gpt"},
          {"layers", gpt.layers},
          {"hidden", gpt.hidden},
          {"heads", gpt.heads},
          {"sequence_length", gpt.sequence_length},
          {"vocab_size", gpt.vocab_size == 0 ? ordered_json(nullptr) : ordered_json(gpt.vocab_size)},
          {"tie_embeddings", gpt.tie_embeddings},
          {"dropout", gpt.dropout},
          {"init_from", path_or_null(gpt.init_from)},
          {"adapter", path_or_null(gpt.lora.init_from)}};
}

} // namespace

RunType gpt_type() {
  return {"gpt", read_gpt, write_gpt, check_language};
}

} // namespace trireme::config
