#include <trireme/tokenizer/model.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/bpe.h>
#include <trireme/tokenizer/part_json.h>
#include <trireme/tokenizer/unigram.h>
#include <trireme/tokenizer/word_piece.h>

namespace trireme::tokenizer {

void Vocabulary::add(const std::string& token, int64_t id, const std::string& where) {
  if (id < 0 || id >= kMostTokens) {
    fail_at(where, concat("the id ", id, " of \"", printable(token), "\" is not in 0 to ", kMostTokens - 1));
  }
  const auto index = static_cast<size_t>(id);
  if (index >= tokens_.size()) {
    tokens_.resize(index + 1);
    known_.resize(index + 1);
  }
  if (known_[index]) {
    fail_at(where, concat("two tokens have the id ", id));
  }
  tokens_[index] = token;
  known_[index] = true;
  ids_.emplace(token, static_cast<int32_t>(id));
}

std::optional<int32_t> Vocabulary::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

int32_t Vocabulary::need(std::string_view token, const char* needed_by, const std::string& where) const {
  const auto id = id_of(token);
  if (!id) {
    fail_at(where,
            concat(needed_by, " needs the token \"", printable(token.substr(0, 80)),
                   "\", which the vocabulary does not have"),
            "Vocabulary and merges must be of the same tokenizer.");
  }
  return *id;
}

Vocabulary read_vocabulary(const JsonNode& node) {
  Vocabulary vocabulary;
  for (const auto& [token, id] : node.members()) {
    vocabulary.add(token, id.as_integer(), id.where());
  }
  if (vocabulary.size() == 0) {
    fail_at(node.where(), "the vocabulary is empty");
  }
  return vocabulary;
}

size_t Model::part_end(std::string_view word, size_t) const {
  return word.size();
}

std::string byte_token(unsigned char byte) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  return concat("<0x", kDigits[byte >> 4], kDigits[byte & 15], '>');
}

std::unique_ptr<Model> read_model(const JsonNode& node) {
  ObjectReader reader(node);
  std::string type = reader.get<std::string>("type", "");
  if (type.empty()) { // of files before the key was written
    const JsonNode* const vocab = reader.find("vocab");
    type = vocab != nullptr && !vocab->is_object() ? "Unigram" : reader.find("merges") != nullptr ? "BPE" : "WordPiece";
  }
  if (type == "BPE") {
    return read_bpe(reader);
  }
  if (type == "Unigram") {
    return read_unigram(reader);
  }
  if (type == "WordPiece") {
    return read_word_piece(reader);
  }
  refuse_type(node, "model", type, "Supported: BPE, Unigram, WordPiece.");
}

} // namespace trireme::tokenizer
