#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/config/key_check.h>
#include <trireme/config/run_types.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace trireme::config {
namespace {

using DataKind = data::DataOptions::Kind;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kBytes = "bytes";

void read_files(const JsonNode& section, const Values& values, const RunPaths& paths, data::DataOptions& out) {
  out.train = paths.all(section, "train");
  out.validation = paths.all(section, "validation");
  out.shuffle = values.get("shuffle", out.shuffle);
  out.prefetch = values.get("prefetch", out.prefetch);
}

// A file or folder, or GPT-2's pair: "VOCAB.json,MERGES.txt".
void read_tokenizer(const JsonNode& section, const Values& values, const RunPaths& paths, RunConfig& run) {
  data::DataOptions& out = run.data;
  if (!out.tokenizer.empty() && out.tokenizer != kBytes) {
    const JsonNode& node = *section.find("tokenizer");
    const size_t comma = out.tokenizer.find(".json,");
    const size_t end = comma == std::string::npos ? out.tokenizer.size() : comma + std::strlen(".json");
    const std::string merges = comma == std::string::npos ? "" : out.tokenizer.substr(end + 1);
    out.tokenizer = paths.one(node, out.tokenizer.substr(0, end)).string();
    if (!merges.empty()) {
      out.tokenizer += ',' + paths.one(node, merges).string();
    }
  }
  out.sequence_length = values.get("sequence_length", run.model.shape().sequence_length);
}

// A folder of token shards, which "trireme data tokenize" has written, has a copy of its tokenizer's files; "" for
// anything else.
std::string tokenizer_of_shards(const RunConfig& run) {
  std::error_code ignored;
  for (const fs::path& path : run.data.train) {
    if (!fs::is_regular_file(path / "index.json", ignored)) {
      continue;
    }
    const JsonNode index = JsonNode::parse_file(path / "index.json");
    const JsonNode* const files = index.is_object() ? index.find("tokenizer_files") : nullptr;
    if (files != nullptr) {
      return files->elements().empty() ? kBytes : path.string();
    }
  }
  return "";
}

void read_tokens(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  const Values values(&section, "data", "tokens");
  run.data.kind = DataKind::tokens;
  read_files(section, values, paths, run.data);
  run.data.token_bytes = values.get("token_bytes", run.data.token_bytes);
  run.data.pack = values.get("pack", run.data.pack);
  run.data.tokenizer = values.get<std::string>("tokenizer", "");
  read_tokenizer(section, values, paths, run);
  if (run.data.tokenizer.empty()) {
    run.data.tokenizer = tokenizer_of_shards(run);
  }
}

void read_text(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  const Values values(&section, "data", "text");
  run.data.kind = DataKind::text;
  read_files(section, values, paths, run.data);
  run.data.validation_fraction = values.get("validation_fraction", run.data.validation_fraction);
  run.data.tokenizer = values.get<std::string>("tokenizer", kBytes);
  read_tokenizer(section, values, paths, run);
}

// A file has a slash or the ending of templates in its name; the tokenizer's folder has the others, by name.
void read_chat_template(const JsonNode& section, const RunPaths& paths, data::DataOptions& out) {
  const JsonNode* const node = section.find("chat_template");
  if (node == nullptr || node->is_null()) {
    return;
  }
  const std::string& text = node->as_string();
  const bool is_file = text.find('/') != std::string::npos || text.ends_with(".jinja") || text.empty();
  out.chat_template = is_file ? paths.one(*node, text).string() : text;
  out.chat_template_place = concat(node->where(), ": ", node->path());
}

void read_json_lines(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  const Values values(&section, "data", "jsonl");
  run.data.kind = DataKind::json_lines;
  read_files(section, values, paths, run.data);
  const char* const usual = run.data.mask_fraction > 0 ? "all" : "response"; // of a bert any token may be masked
  run.data.loss_on =
      lower(values.get<std::string>("loss_on", usual)) == "all" ? data::LossOn::all : data::LossOn::response;
  read_chat_template(section, paths, run.data);
  run.data.pack = values.get("pack", run.data.pack);
  run.data.tokenizer = values.get<std::string>("tokenizer", kBytes);
  read_tokenizer(section, values, paths, run);
}

void read_labelled_text(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  const Values values(&section, "data", "labelled_text");
  run.data.kind = DataKind::labelled_text;
  read_files(section, values, paths, run.data);
  run.data.tokenizer = values.get<std::string>("tokenizer", kBytes);
  read_tokenizer(section, values, paths, run);
  run.data.classes = run.model.kind == ModelConfig::Kind::bert ? run.model.bert.classes : 0;
}

void read_images(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  const Values values(&section, "data", "images");
  data::DataOptions& out = run.data;
  out.kind = DataKind::images;
  read_files(section, values, paths, out);
  out.train_labels = paths.all(section, "train_labels");
  out.validation_labels = paths.all(section, "validation_labels");
  out.mean = values.get("mean", out.mean);
  out.std = values.get("std", out.std);
  out.classes = run.model.kind == ModelConfig::Kind::cnn       ? run.model.cnn.classes
                : run.model.kind == ModelConfig::Kind::alexnet ? run.model.alexnet.classes
                                                               : 0;
}

// An object alone is a list of one.
std::vector<const JsonNode*> sets_in(const JsonNode& section) {
  const JsonNode& sets = *section.find("sets");
  std::vector<const JsonNode*> out;
  if (sets.is_object()) {
    out.push_back(&sets);
  } else {
    std::ranges::transform(sets.elements(), std::back_inserter(out), [](const JsonNode& set) { return &set; });
  }
  if (out.empty()) {
    sets.fail("a mixture needs at least one set", "Write {\"data\": {...}, \"weight\": 1} for each.");
  }
  return out;
}

// Its tokenizer is the mixture's, or becomes it.
data::MixtureSet read_set(const JsonNode& set, const RunPaths& paths, RunConfig& run) {
  const JsonNode& section = *set.find("data");
  RunConfig own;
  own.model = run.model;
  own.data.mask_fraction = run.data.mask_fraction;
  const std::string type = lower(section.find("type")->as_string());
  type == "text"    ? read_text(section, paths, own)
  : type == "jsonl" ? read_json_lines(section, paths, own)
                    : read_tokens(section, paths, own);
  if (own.data.token_bytes == 3) {
    section.find("token_bytes")->fail("tokens have 2 or 4 bytes", "Set one of these, or leave it out.");
  }
  if (own.data.validation_fraction > 0 && !own.data.validation.empty()) {
    section.find("validation_fraction")->fail("there are validation files too", "Keep one of the two.");
  }
  own.data.sequence_length = run.data.sequence_length;
  run.data.tokenizer = run.data.tokenizer.empty() ? own.data.tokenizer : run.data.tokenizer;
  return {std::make_shared<const data::DataOptions>(own.data), set.find("weight")->as_real(),
          concat(section.where(), ": ", section.path())};
}

void read_mixture(const JsonNode& section, const RunPaths& paths, RunConfig& run) {
  const Values values(&section, "data", "mixture");
  data::DataOptions& out = run.data;
  out.kind = DataKind::mixture;
  out.shuffle = values.get("shuffle", out.shuffle);
  out.prefetch = values.get("prefetch", out.prefetch);
  out.tokenizer = values.get<std::string>("tokenizer", "");
  read_tokenizer(section, values, paths, run);
  for (const JsonNode* set : sets_in(section)) {
    out.sets.push_back(read_set(*set, paths, run));
  }
}

ordered_json write_files(const char* type, const data::DataOptions& data) {
  return {{"type", type}, {"train", texts_of(data.train)}, {"validation", texts_of(data.validation)}};
}

void write_order(const data::DataOptions& data, ordered_json& out) {
  if (data.kind != DataKind::images) {
    out["tokenizer"] = path_or_null(data.tokenizer);
    out["sequence_length"] = data.sequence_length;
  }
  out["shuffle"] = data.shuffle;
  out["prefetch"] = data.prefetch;
}

ordered_json write_tokens(const RunConfig& run) {
  ordered_json out = write_files("tokens", run.data);
  out["token_bytes"] = run.data.token_bytes == 0 ? ordered_json(nullptr) : ordered_json(run.data.token_bytes);
  out["pack"] = run.data.pack;
  write_order(run.data, out);
  return out;
}

ordered_json write_text(const RunConfig& run) {
  ordered_json out = write_files("text", run.data);
  out["validation_fraction"] = run.data.validation_fraction;
  write_order(run.data, out);
  return out;
}

void write_lines_keys(const data::DataOptions& data, ordered_json& out) {
  out["loss_on"] = data.loss_on == data::LossOn::all ? "all" : "response";
  out["chat_template"] = path_or_null(data.chat_template);
}

ordered_json write_json_lines(const RunConfig& run) {
  ordered_json out = write_files("jsonl", run.data);
  write_lines_keys(run.data, out);
  out["pack"] = run.data.pack;
  write_order(run.data, out);
  return out;
}

ordered_json write_labelled_text(const RunConfig& run) {
  ordered_json out = write_files("labelled_text", run.data);
  write_order(run.data, out);
  return out;
}

ordered_json write_set(const data::MixtureSet& set) {
  const data::DataOptions& data = *set.data;
  const bool is_lines = data.kind == DataKind::json_lines;
  ordered_json out = write_files(is_lines ? "jsonl" : data.kind == DataKind::text ? "text" : "tokens", data);
  if (data.kind == DataKind::text) {
    out["validation_fraction"] = data.validation_fraction;
  } else if (is_lines) {
    write_lines_keys(data, out);
  } else {
    out["token_bytes"] = data.token_bytes == 0 ? ordered_json(nullptr) : ordered_json(data.token_bytes);
  }
  return {{"data", std::move(out)}, {"weight", set.weight}};
}

ordered_json write_mixture(const RunConfig& run) {
  ordered_json out = {{"type", "mixture"}, {"sets", ordered_json::array()}};
  std::ranges::transform(run.data.sets, std::back_inserter(out["sets"]), write_set);
  write_order(run.data, out);
  return out;
}

ordered_json write_images(const RunConfig& run) {
  ordered_json out = write_files("images", run.data);
  out.update({{"train_labels", texts_of(run.data.train_labels)},
              {"validation_labels", texts_of(run.data.validation_labels)},
              {"mean", run.data.mean},
              {"std", run.data.std}});
  write_order(run.data, out);
  return out;
}

} // namespace

RunType tokens_type() {
  return {"tokens", read_tokens, write_tokens};
}

RunType text_type() {
  return {"text", read_text, write_text};
}

RunType json_lines_type() {
  return {"jsonl", read_json_lines, write_json_lines};
}

RunType labelled_text_type() {
  return {"labelled_text", read_labelled_text, write_labelled_text};
}

RunType mixture_type() {
  return {"mixture", read_mixture, write_mixture};
}

RunType images_type() {
  return {"images", read_images, write_images};
}

} // namespace trireme::config
