#include <trireme/base/error.h>
#include <trireme/config/fields.h>
#include <trireme/config/huggingface_folder.h>
#include <trireme/config/language_checks.h>
#include <trireme/config/places.h>
#include <trireme/config/run_types.h>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;
using Head = models::BertOptions::Head;

constexpr double kMaskFraction = 0.15;

void fields(const auto& each, models::BertOptions& bert) {
  each("layers", bert.layers);
  each("hidden", bert.hidden);
  each("heads", bert.heads);
  each.or_null("intermediate", bert.intermediate);
  each("sequence_length", bert.sequence_length);
  each.or_null("vocab_size", bert.vocab_size);
  each("segments", bert.segments);
  each("dropout", bert.dropout);
  each("layer_norm_eps", bert.layer_norm_eps);
}

const char* name_of(Head head) {
  return head == Head::classes ? "classes" : "masked_lm";
}

void read_head(const Values& values, RunConfig& run) {
  models::BertOptions& bert = run.model.bert;
  bert.head = values.get<std::string>("head", name_of(bert.head)) == "classes" ? Head::classes : Head::masked_lm;
  const bool masked = bert.head == Head::masked_lm;
  for (const char* key : {"classes", "mask_fraction", "mask_token"}) {
    const bool of_masked = std::string_view(key) != "classes";
    if (const JsonNode* found = values.find(key); found != nullptr && of_masked != masked) {
      found->fail(concat("needs the head \"", name_of(of_masked ? Head::masked_lm : Head::classes),
                         "\", but the head is \"", name_of(bert.head), '"'),
                  "Leave it out, or choose that head.");
    }
  }
  bert.classes = values.get("classes", bert.classes);
  run.data.mask_fraction = masked ? values.get("mask_fraction", kMaskFraction) : 0;
  if (masked && run.data.mask_fraction == 0) {
    values.find("mask_fraction")->fail("must be above 0", "Leave it out for 0.15, as in the paper.");
  }
  run.data.mask_token = values.get<int64_t>("mask_token", -1);
  run.model.traits = {.layers = true, .only_layers = true, .tensor = true, .context = masked};
}

void read_bert(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  run.model.kind = ModelConfig::Kind::bert;
  const Values values(&section, "model", "bert");
  models::BertOptions& bert = run.model.bert;
  bert.vocab_size = 0; // the tokenizer's
  if (const auto from = read_from(section, paths, run)) {
    bert = from->bert;
  }
  fields(ReadFields(values), bert);
  read_head(values, run);
  if (values.find("init_from") != nullptr) {
    bert.init_from = paths.one(section, "init_from");
  }
  bert.lora.init_from = paths.one(section, "adapter");
}

ordered_json write_bert(const RunConfig& run) {
  models::BertOptions bert = run.model.bert;
  const bool masked = bert.head == Head::masked_lm;
  const auto where = [](bool is_used, const ordered_json& value) { return is_used ? value : ordered_json(nullptr); };
  ordered_json out = {{"type", "bert"}};
  fields(WriteFields(out), bert);
  out.update({{"head", name_of(bert.head)},
              {"classes", where(!masked, bert.classes)},
              {"mask_fraction", where(masked, run.data.mask_fraction)},
              {"mask_token", where(run.data.mask_token >= 0, run.data.mask_token)},
              {"init_from", path_or_null(bert.init_from)},
              {"adapter", path_or_null(bert.lora.init_from)}});
  return out;
}

void check_bert(const JsonNode& root, RunConfig& run) {
  check_language(root, run);
  const models::BertOptions& bert = run.model.bert;
  if (bert.head != Head::masked_lm || run.data.kind == data::DataOptions::Kind::of_program) {
    return;
  }
  if (run.data.mask_token < 0 && run.data.tokenizer.empty()) {
    root.find("model")->fail(
        concat("\"mask_token\" is missing, and there is no tokenizer to ask, ", named(place(root, "data", "type"))),
        "Write it, or \"tokenizer\" in \"data\".");
  }
  if (bert.vocab_size > 0 && run.data.mask_token >= bert.vocab_size) {
    place(root, "model", "mask_token")
        .fail(concat("token ", run.data.mask_token, " is outside of a vocabulary of ", bert.vocab_size, ", ",
                     named(place(root, "model", "vocab_size"))));
  }
}

} // namespace

RunType bert_type() {
  return {"bert", read_bert, write_bert, check_bert};
}

} // namespace trireme::config
