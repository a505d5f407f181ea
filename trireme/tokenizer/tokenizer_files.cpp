#include <trireme/tokenizer/tokenizer_files.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/read_tokenizer.h>

#include <utility>

namespace trireme::tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPairs[][2] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};

bool exists_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Those that decide, in the order of make_tokenizer(); and the folder of the others.
std::pair<std::vector<TokenizerFile>, fs::path> deciding_files(const std::string& spec) {
  std::error_code ignored;
  const fs::path path = spec;
  if (fs::is_directory(path, ignored)) {
    if (exists_file(path / "tokenizer.json")) {
      return {{{path / "tokenizer.json", "tokenizer.json"}}, path};
    }
    for (const auto& [vocab, merges] : kPairs) {
      if (exists_file(path / vocab)) {
        return {{{path / vocab, "vocab.json"}, {path / merges, "merges.txt"}}, path};
      }
    }
    return {{}, path};
  }
  if (exists_file(path)) {
    if (path.filename() != "vocab.json" && path.filename() != "encoder.json") {
      return {{{path, "tokenizer.json"}}, path.parent_path()};
    }
    const bool has_merges = exists_file(path.parent_path() / "merges.txt");
    return {{{path, "vocab.json"}, {path.parent_path() / (has_merges ? "merges.txt" : "vocab.bpe"), "merges.txt"}},
            path.parent_path()};
  }
  if (const auto pair = vocab_and_merges_in(spec)) {
    return {{{pair->first, "vocab.json"}, {pair->second, "merges.txt"}}, pair->first.parent_path()};
  }
  return {};
}

// "eos_token" is a text, or an object with it.
const JsonNode* content_of(const JsonNode& config) {
  const JsonNode* const token = config.is_object() ? config.find("eos_token") : nullptr;
  return token != nullptr && token->is_object() ? token->find("content") : token;
}

// "eos_token_id" is a number, or a list.
const JsonNode* id_of(const JsonNode& config) {
  const JsonNode* const id = config.is_object() ? config.find("eos_token_id") : nullptr;
  if (id == nullptr || id->kind() != JsonNode::Kind::array) {
    return id;
  }
  return id->elements().empty() ? nullptr : &id->elements().front();
}

} // namespace

std::vector<TokenizerFile> tokenizer_files(const std::string& spec) {
  if (spec == "bytes") {
    return {};
  }
  auto [files, folder] = deciding_files(spec);
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja"}) {
    if (exists_file(folder / name)) {
      files.push_back({folder / name, name, /*decides=*/false});
    }
  }
  return files;
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
  if (spec == "bytes") {
    return std::nullopt;
  }
  const auto [files, folder] = deciding_files(spec);
  if (exists_file(folder / "tokenizer_config.json")) {
    const JsonNode config = JsonNode::parse_file(folder / "tokenizer_config.json");
    if (const JsonNode* const text = content_of(config); text != nullptr && !text->is_null()) {
      return end_token_named(text->as_string(), tokenizer);
    }
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!exists_file(folder / name)) {
      continue;
    }
    const JsonNode config = JsonNode::parse_file(folder / name);
    if (const JsonNode* const node = id_of(config); node != nullptr && !node->is_null()) {
      const int64_t id = node->as_integer();
      if (id < 0 || id >= tokenizer.vocab_size()) {
        node->fail(concat("id ", id, " is outside of the tokenizer's ", tokenizer.vocab_size(), " tokens"),
                   "Correct it, or name the end token.");
      }
      const std::vector<int32_t> ids{static_cast<int32_t>(id)};
      return EndToken{tokenizer.decode(ids), ids.front()};
    }
  }
  constexpr const char* kEndOfText = "<|endoftext|>"; // of GPT-2, whose pair of files has no configuration
  if (!files.empty() && files.front().name == "vocab.json") {
    if (const auto ids = tokenizer.encode(kEndOfText); ids.size() == 1) {
      return EndToken{kEndOfText, ids.front()};
    }
  }
  return std::nullopt;
}

} // namespace trireme::tokenizer
