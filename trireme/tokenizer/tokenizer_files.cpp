#include <trireme/tokenizer/tokenizer_files.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/read_tokenizer.h>

#include <algorithm>
#include <span>
#include <utility>

namespace trireme::tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kChoices =
    "Give \"bytes\", a Hugging Face tokenizer.json, or a folder with vocab.json and merges.txt (or encoder.json and "
    "vocab.bpe).";
constexpr const char* kVocabularies[] = {"vocab.json", "encoder.json"}; // with any of:
constexpr const char* kMerges[] = {"merges.txt", "vocab.bpe"};

bool exists_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::vector<TokenizerFile> pair_of(const fs::path& vocab, const fs::path& merges) {
  return {{vocab, "vocab.json"}, {merges, "merges.txt"}};
}

std::vector<TokenizerFile> files_of(const fs::path& file) {
  if (file.filename() != "vocab.json" && file.filename() != "encoder.json") {
    return {{file, "tokenizer.json"}};
  }
  for (const char* merges : kMerges) {
    if (exists_file(file.parent_path() / merges)) {
      return pair_of(file, file.parent_path() / merges);
    }
  }
  throw InputError("tokenizer",
                   concat(file.string(), " needs its merges, there is no merges.txt or vocab.bpe beside it"), kChoices);
}

std::vector<TokenizerFile> files_in(const fs::path& folder) {
  if (exists_file(folder / "tokenizer.json")) {
    return {{folder / "tokenizer.json", "tokenizer.json"}};
  }
  for (const char* vocab : kVocabularies) {
    if (exists_file(folder / vocab)) {
      return files_of(folder / vocab);
    }
  }
  for (const char* merges : kMerges) {
    if (exists_file(folder / merges)) {
      throw InputError("tokenizer", concat(folder.string(), " has ", merges, " but no vocab.json"), "Both are needed.");
    }
  }
  throw InputError("tokenizer", concat("the folder ", folder.string(), " has no tokenizer"), kChoices);
}

// "eos_token" is a text, or an object with it.
const JsonNode* content_of(const JsonNode& config) {
  const JsonNode* const token = config.is_object() ? config.find("eos_token") : nullptr;
  return token != nullptr && token->is_object() ? token->find("content") : token;
}

} // namespace

std::vector<TokenizerFile> deciding_files(const std::string& spec) {
  std::error_code ignored;
  if (spec == "bytes") {
    return {};
  }
  if (fs::is_directory(spec, ignored)) {
    return files_in(spec);
  }
  if (exists_file(spec)) {
    return files_of(spec);
  }
  if (const auto pair = vocab_and_merges_in(spec)) {
    return pair_of(pair->first, pair->second);
  }
  throw InputError(
      "tokenizer",
      concat('"', spec, "\" is neither a known tokenizer nor a file or folder. ", did_you_mean(spec, {"bytes"})),
      kChoices);
}

std::vector<TokenizerFile> tokenizer_files(const std::string& spec) {
  std::vector<TokenizerFile> files = deciding_files(spec);
  if (files.empty()) {
    return files;
  }
  const fs::path folder = files.front().path.parent_path();
  for (const char* name : kBesideTokenizer) {
    const bool decides = std::ranges::any_of(files, [&](const TokenizerFile& file) { return file.name == name; });
    if (!decides && exists_file(folder / name)) {
      files.push_back({folder / name, name, /*decides=*/false});
    }
  }
  return files;
}

std::vector<int32_t> end_token_ids_in(const fs::path& folder, int64_t vocab_size) {
  std::vector<int32_t> ids;
  const auto add = [&](const JsonNode& node) {
    const int64_t id = node.as_integer();
    if (id < 0 || id >= vocab_size) {
      node.fail(concat("id ", id, " is outside of the tokenizer's ", vocab_size, " tokens"),
                "Correct it, or name the end token.");
    }
    ids.push_back(static_cast<int32_t>(id));
  };
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!exists_file(folder / name)) {
      continue;
    }
    const JsonNode config = JsonNode::parse_file(folder / name);
    const JsonNode* const node = config.is_object() ? config.find("eos_token_id") : nullptr;
    if (node == nullptr || node->is_null()) {
      continue;
    }
    if (node->kind() == JsonNode::Kind::array) {
      std::ranges::for_each(node->elements(), add);
    } else {
      add(*node);
    }
    return ids;
  }
  return ids;
}

EndToken end_token_named(const std::string& text, const Tokenizer& tokenizer) {
  const std::vector<int32_t> ids = text.empty() ? std::vector<int32_t>() : tokenizer.encode(text);
  if (ids.size() != 1) {
    throw InputError("tokenizer",
                     concat("\"", printable(text), "\" is ", ids.size(), " tokens of ", tokenizer.describe(),
                            ", and an end token must be one"),
                     "Name a special token of the tokenizer, or none.");
  }
  return {text, ids.front()};
}

std::optional<EndToken> end_token_of(const std::string& spec, const Tokenizer& tokenizer) {
  const std::vector<TokenizerFile> files = deciding_files(spec);
  if (files.empty()) {
    return std::nullopt;
  }
  const fs::path folder = files.front().path.parent_path();
  if (exists_file(folder / "tokenizer_config.json")) {
    const JsonNode config = JsonNode::parse_file(folder / "tokenizer_config.json");
    if (const JsonNode* const text = content_of(config); text != nullptr && !text->is_null()) {
      return end_token_named(text->as_string(), tokenizer);
    }
  }
  if (const auto ids = end_token_ids_in(folder, tokenizer.vocab_size()); !ids.empty()) {
    return EndToken{tokenizer.decode(std::span(ids).first(1)), ids.front()};
  }
  constexpr const char* kEndOfText = "<|endoftext|>"; // of GPT-2, whose pair of files has no configuration
  if (files.front().name == "vocab.json") {
    if (const auto ids = tokenizer.encode(kEndOfText); ids.size() == 1) {
      return EndToken{kEndOfText, ids.front()};
    }
  }
  return std::nullopt;
}

} // namespace trireme::tokenizer
