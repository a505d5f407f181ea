#include <trireme/tokenizer/read_tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/bpe.h>
#include <trireme/tokenizer/part_json.h>
#include <trireme/tokenizer/text_tokenizer.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

namespace trireme::tokenizer {
namespace {

namespace fs = std::filesystem;

// tokenizers gives a token that the model does not have the next free id and only warns if the file has another. Here
// both must agree, because the file does not tell which id the model was trained with.
std::vector<AddedToken> read_added_tokens(const JsonNode& node, const Model& model) {
  std::vector<AddedToken> tokens;
  std::unordered_set<std::string> contents;
  auto next = static_cast<int64_t>(model.num_tokens());
  for (const JsonNode& entry : node.elements()) {
    ObjectReader reader(entry);
    AddedToken token;
    token.content = reader.require_as<std::string>("content");
    token.lstrip = reader.get("lstrip", false);
    token.rstrip = reader.get("rstrip", false);
    token.single_word = reader.get("single_word", false);
    token.normalized = reader.get("normalized", true);
    token.special = reader.get("special", false);
    const auto id = reader.require_as<int64_t>("id");
    reader.finish();
    if (token.content.empty()) {
      continue;
    }
    const std::string name = concat("the added token \"", printable(token.content), '"');
    if (!contents.insert(token.content).second) {
      fail_at(entry.where(), concat(name, " appears twice"));
    }
    const auto in_model = model.id_of(token.content);
    const int64_t expected = in_model ? *in_model : next;
    if (id != expected) {
      fail_at(entry.where(),
              concat(name, " has the id ", id, ", but ",
                     in_model ? "the vocabulary gives it " : "its position gives it ", expected),
              "Save the file again with Hugging Face tokenizers and check which id the model was trained with.");
    }
    if (id >= kMostTokens) {
      fail_at(entry.where(), concat(name, " has the id ", id, ", which is not in 0 to ", kMostTokens - 1));
    }
    token.id = static_cast<int32_t>(id);
    next = std::max(next, id + 1);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

const JsonNode* part_of(const JsonNode& root, const char* key) {
  const JsonNode* const found = root.find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

} // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(const fs::path& file) {
  const JsonNode root = JsonNode::parse_file(file);
  ObjectReader reader(root);
  TokenizerParts parts;
  // The model first: its type explains more than other differences of such a file.
  parts.model = read_model(reader.require("model"));
  if (const JsonNode* const node = part_of(root, "normalizer")) {
    parts.normalizers = read_normalizers(*node);
  }
  if (const JsonNode* const node = part_of(root, "pre_tokenizer")) {
    parts.pre_tokenizers = read_pre_tokenizers(*node);
  }
  if (const JsonNode* const node = part_of(root, "post_processor")) {
    parts.post_processor = read_post_processor(*node);
  }
  if (const JsonNode* const node = part_of(root, "decoder")) {
    parts.decoders = read_decoders(*node);
    parts.has_decoder = true;
  }
  if (const JsonNode* const node = part_of(root, "added_tokens")) {
    parts.added = read_added_tokens(*node, *parts.model);
  }
  return std::make_unique<TextTokenizer>(std::move(parts), file.string());
}

std::unique_ptr<Tokenizer> read_vocab_and_merges(const fs::path& vocab, const fs::path& merges) {
  Vocabulary vocabulary = read_vocabulary(JsonNode::parse_file(vocab));
  const std::vector<Merge> rules = read_merges(merges, vocabulary);
  TokenizerParts parts;
  constexpr const char* kEndOfText = "<|endoftext|>";
  if (const auto id = vocabulary.id_of(kEndOfText)) {
    parts.added.push_back({.content = kEndOfText, .id = *id, .special = true});
  }
  parts.model = std::make_unique<Bpe>(std::move(vocabulary), rules, BpeOptions{}, vocab.string());
  parts.pre_tokenizers = read_pre_tokenizers(
      JsonNode::parse(R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})", "GPT-2"));
  parts.decoders = read_decoders(JsonNode::parse(R"({"type": "ByteLevel"})", "GPT-2"));
  parts.has_decoder = true;
  return std::make_unique<TextTokenizer>(std::move(parts), vocab.string());
}

} // namespace trireme::tokenizer
