#pragma once

#include <trireme/base/json.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::tokenizer {

/// The tokens of a model and their ids.
class Vocabulary {
 public:
  /// Adds a token. Errors: InputError at `where` for an id that is out of range, or that another token has.
  void add(const std::string& token, int64_t id, const std::string& where);

  std::optional<int32_t> id_of(std::string_view token) const;
  /// The same; InputError at `where` if the vocabulary lacks `token`, which `needed_by` ("the merge") needs.
  int32_t need(std::string_view token, const char* needed_by, const std::string& where) const;

  /// Number of tokens; ids need not be dense.
  size_t size() const { return ids_.size(); }
  /// By id; an id without a token has "".
  const std::vector<std::string>& tokens() const { return tokens_; }
  bool has_id(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < known_.size() && known_[static_cast<size_t>(id)];
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<std::string> tokens_;
  std::vector<bool> known_;
};

/// No real file has an id this large; a wrong one must not allocate gigabytes.
constexpr int64_t kMostTokens = 1 << 21;

/// Turns a word into tokens. All members are const and thread-safe.
class Model {
 public:
  virtual ~Model() = default;

  /// Appends the ids of `word`, which is valid UTF-8, not empty and has fewer than 2^31 characters. Errors: InputError
  /// for what has no token if the model has no unknown token.
  virtual void encode(std::string_view word, std::vector<int32_t>& out) const = 0;
  /// Returns the end of the first part of `word` that gets the same ids alone as in the word: at least 1 byte.
  virtual size_t part_end(std::string_view word, size_t at) const;

  /// "BPE", "Unigram" or "WordPiece".
  virtual const char* name() const = 0;
  /// The id of a token as the model's vocabulary has it: of several that are equal, the last.
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  /// By id; "" for an id without a token.
  virtual const std::vector<std::string>& tokens() const = 0;
  virtual bool has_id(int32_t id) const = 0;
  /// Number of different tokens: the id that the first added token gets.
  virtual size_t num_tokens() const = 0;
};

/// Reads "model" of a tokenizer.json: BPE, Unigram, WordPiece. Errors: InputError naming what is not supported, with
/// file, line and column for damage.
std::unique_ptr<Model> read_model(const JsonNode& node);

/// Reads {"token": id, ...}. Errors: InputError with line and column.
Vocabulary read_vocabulary(const JsonNode& node);

/// "<0x0A>", as sentencepiece names a byte.
std::string byte_token(unsigned char byte);

} // namespace trireme::tokenizer
