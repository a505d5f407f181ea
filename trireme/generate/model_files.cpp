#include <trireme/generate/model_files.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/json.h>
#include <trireme/base/path.h>
#include <trireme/chat/chat_template.h>
#include <trireme/config/run_types.h>
#include <trireme/data/labelled_text.h>
#include <trireme/data/token_files/tokenizer_hash.h>
#include <trireme/tokenizer/read_tokenizer.h>
#include <trireme/tokenizer/tokenizer_files.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace trireme::generate {
namespace {

namespace fs = std::filesystem;

constexpr std::array kConfig = {"config.json", "generation_config.json"};
// Names in a copy; the last two in those of older runs.
constexpr std::array kDecide = {"tokenizer.json", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe"};
constexpr const char* kLabels = "labels.json";

constexpr const char* kChatTemplate = "chat_template.jinja";
// Anyone may read a copy, whatever the mode of the original, and a later start may replace it.
constexpr mode_t kCopyMode = 0644;

void put_copy(const fs::path& from, const fs::path& to) {
  make_private_folders(to.parent_path());
  write_file_atomically(to, read_file(from), kCopyMode);
}

void copy_files(const fs::path& from, std::span<const char* const> names, const fs::path& to) {
  std::error_code ignored;
  for (const char* name : names) {
    if (fs::is_regular_file(from / name, ignored) && !fs::equivalent(from / name, to / name, ignored)) {
      put_copy(from / name, to / name);
    }
  }
}

// Whether the run has a copy, of what decides what its weights mean. Errors: InputError for another content.
bool is_kept_unchanged(const fs::path& from, const fs::path& kept) {
  std::error_code ignored;
  if (!fs::is_regular_file(kept, ignored)) {
    return false;
  }
  if (!fs::equivalent(from, kept, ignored) && read_file(from) != read_file(kept)) {
    throw InputError("train", concat(from.string(), " has changed since this run began with ", kept.string()),
                     concat("Put the old file back, or remove ", kept.string(), " to go on with the new one."));
  }
  return true;
}

bool is_there(const std::string& tokenizer) {
  std::error_code ignored;
  return fs::exists(tokenizer, ignored) || tokenizer::vocab_and_merges_in(tokenizer);
}

// A folder, whether the path is one or a file in one.
fs::path folder_of(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? path : path.parent_path();
}

using Kept = tokenizer::TokenizerFile;

// Those that are there.
std::vector<Kept> files_of(const config::RunConfig& run) {
  std::vector<Kept> files;
  std::error_code ignored;
  if (const fs::path& from = run.model.init_from(); run.model.reads_tokens() && !from.empty()) {
    const auto checkpoint = checkpoint::find_newest(from);
    const fs::path folder = checkpoint ? kept_folder(*checkpoint) : folder_of(from);
    for (const char* name : kConfig) {
      if (fs::is_regular_file(folder / name, ignored)) {
        files.push_back({folder / name, name, /*decides=*/std::string_view(name) == "config.json"});
      }
    }
  }
  if (run.data.tokenizer.empty() || !is_there(run.data.tokenizer)) {
    return files;
  }
  for (const Kept& file : tokenizer::tokenizer_files(run.data.tokenizer)) {
    if (std::ranges::none_of(files, [&](const Kept& other) { return other.name == file.name; })) {
      files.push_back(file);
    }
  }
  return files;
}

// The template that all conversations of the data have; empty: the default one of the tokenizer's folder.
std::string chat_template_of(const data::DataOptions& options) {
  if (options.kind == data::DataOptions::Kind::json_lines) {
    return options.chat_template;
  }
  std::optional<std::string> of_all;
  for (const data::MixtureSet& set : options.sets) {
    if (set.data->kind == data::DataOptions::Kind::json_lines) {
      if (of_all && *of_all != set.data->chat_template) {
        return "";
      }
      of_all = set.data->chat_template;
    }
  }
  return of_all.value_or("");
}

// Its text; none where the data has no template of its own, or the file is gone after the tokens were made.
std::optional<std::string> own_chat_template(const config::RunConfig& run) {
  const std::string name = chat_template_of(run.data);
  if (name.empty()) {
    return std::nullopt;
  }
  const std::string& tokenizer = run.data.tokenizer;
  const auto files =
      tokenizer.empty() || !is_there(tokenizer) ? std::vector<Kept>() : tokenizer::tokenizer_files(tokenizer);
  return chat::find_chat_template_text(name, files.empty() ? fs::path() : files.front().path.parent_path());
}

// Of an earlier run in the same folder. What this run is told to read from there stays.
void forget_all_but(const std::vector<Kept>& files, const fs::path& folder) {
  std::error_code ignored;
  for (const auto& item : fs::directory_iterator(folder, ignored)) {
    if (std::ranges::none_of(files, [&](const Kept& file) { return fs::equivalent(file.path, item, ignored); })) {
      fs::remove_all(item, ignored);
    }
  }
}

// Names of classes, in their order; none if they are numbers.
void keep_labels(const std::vector<std::string>& labels, const fs::path& folder) {
  if (labels.empty()) {
    return;
  }
  const fs::path file = folder / kLabels;
  const std::string text = nlohmann::json(labels).dump() + "\n";
  std::error_code ignored;
  if (fs::is_regular_file(file, ignored) && read_file(file) != text) {
    throw InputError("train",
                     concat("the labels are others than those this run began with, ", read_file(file), " (",
                            file.string(), "): ", text),
                     "Train on texts with the old labels, or start a new run.");
  }
  make_private_folders(folder);
  write_file_atomically(file, text);
}

} // namespace

checkpoint::Checkpoint open_held(const fs::path& path, const comm::Group& ranks) {
  checkpoint::OpenOptions options;
  options.hold_files = true;
  return checkpoint::Checkpoint::open(path, "", ranks, options);
}

config::RunConfig run_of(const checkpoint::Checkpoint& saved, const char* area) {
  const JsonNode config =
      JsonNode::parse(saved.config().dump(), (saved.folder() / "manifest.json").string()); // errors name it
  const JsonNode* const model = config.is_object() ? config.find("model") : nullptr;
  const JsonNode* const type = model != nullptr && model->is_object() ? model->find("type") : nullptr;
  const auto& known = config::built_in_types().models;
  if (type != nullptr && type->kind() == JsonNode::Kind::string &&
      std::ranges::none_of(known, [&](const config::RunType& one) { return one.name == type->as_string(); })) {
    throw InputError(area, concat(saved.folder().string(), " is a ", type->as_string(), ", a model of a program's own"),
                     "A \"gpt\" or \"llama\" of Trireme can be used so.");
  }
  return config::read_run(config, saved.folder());
}

fs::path kept_folder(const fs::path& checkpoint) {
  const fs::path folder = without_end_slash(fs::absolute(checkpoint).lexically_normal()); // it may be "."
  const bool in_run = folder.parent_path().filename() == "checkpoints"; // not a copy beside somebody's model/
  return (in_run ? folder.parent_path().parent_path() : folder) / kKept;
}

void keep_model_files(const config::RunConfig& run, const fs::path& run_folder, const data::Datasets& datasets,
                      bool resumed) {
  const fs::path to = run_folder / kKept;
  std::error_code ignored;
  std::vector<Kept> files = files_of(run);
  const std::optional<std::string> chat_template = own_chat_template(run); // it may be in the folder that is cleared
  const std::string& tokenizer = run.data.tokenizer;
  const bool has_files = !tokenizer.empty() && tokenizer != "bytes";
  if (!resumed && has_files && !is_there(tokenizer)) {
    throw InputError("train", concat(tokenizer, " was removed after it was read, before the run kept a copy"),
                     "Put it back and start again.");
  }
  if (!resumed) {
    forget_all_but(files, to);
  }
  std::erase_if(files, [&](const Kept& file) { return file.decides && is_kept_unchanged(file.path, to / file.name); });
  if (chat_template) {
    std::erase_if(files, [](const Kept& file) { return file.name == kChatTemplate; });
  }
  for (const Kept& file : files) {
    if (!fs::equivalent(file.path, to / file.name, ignored)) {
      put_copy(file.path, to / file.name);
    }
  }
  if (chat_template) {
    make_private_folders(to);
    write_file_atomically(to / kChatTemplate, *chat_template, kCopyMode);
  }
  if (has_files && datasets.tokenizer_hash && data::tokenizer_hash(to.string()) != *datasets.tokenizer_hash) {
    throw InputError("train", concat(tokenizer, " was replaced after it was read, before the run kept a copy"),
                     "Start again.");
  }
  if (const auto* const labelled = dynamic_cast<const data::LabelledText*>(datasets.train.get())) {
    keep_labels(labelled->names(), to);
  }
}

std::vector<std::string> kept_labels(const fs::path& checkpoint) {
  const fs::path file = kept_folder(checkpoint) / kLabels;
  std::error_code ignored;
  std::vector<std::string> labels;
  if (fs::is_regular_file(file, ignored)) {
    const JsonNode root = JsonNode::parse_file(file);
    for (const JsonNode& label : root.elements()) {
      labels.push_back(label.as_string());
    }
  }
  return labels;
}

void copy_kept_files(const fs::path& checkpoint, const fs::path& to) {
  copy_files(kept_folder(checkpoint), kConfig, to);
  copy_files(kept_folder(checkpoint), kDecide, to);
  copy_files(kept_folder(checkpoint), tokenizer::kBesideTokenizer, to);
}

fs::path kept_tokenizer(const config::RunConfig& run, const fs::path& checkpoint) {
  const fs::path& tokenizer = run.data.tokenizer;
  std::error_code ignored;
  if (!tokenizer.has_parent_path()) { // "bytes"
    return tokenizer;
  }
  const fs::path kept = kept_folder(checkpoint);
  for (const fs::path& name : {tokenizer.filename(), fs::path("tokenizer.json"), fs::path("vocab.json"),
                               fs::path("encoder.json")}) { // the last: of older runs
    if (fs::is_regular_file(kept / name, ignored)) {
      return kept / name;
    }
  }
  return tokenizer;
}

} // namespace trireme::generate
