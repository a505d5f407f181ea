#pragma once

#include <trireme/tokenizer/model.h>
#include <trireme/tokenizer/trie.h>

#include <string>
#include <vector>

namespace trireme::tokenizer {

/// WordPiece (Wu et al. 2016) as BERT uses it: again and again the longest token that the rest of the word begins with.
/// A word that cannot be taken apart, or has too many characters, is one unknown token.
class WordPiece final : public Model {
 public:
  struct Options {
    std::string unk_token = "[UNK]";
    /// Tokens that do not begin a word begin with it.
    std::string continuing_subword_prefix = "##";
    int64_t max_input_chars_per_word = 100;
  };
  /// `source` names the model in messages.
  WordPiece(Vocabulary vocabulary, Options options, std::string source);

  void encode(std::string_view word, std::vector<int32_t>& out) const override;

  const char* name() const override { return "WordPiece"; }
  std::optional<int32_t> id_of(std::string_view token) const override { return vocabulary_.id_of(token); }
  const std::vector<std::string>& tokens() const override { return vocabulary_.tokens(); }
  bool has_id(int32_t id) const override { return vocabulary_.has_id(id); }
  size_t num_tokens() const override { return vocabulary_.size(); }

 private:
  bool take_apart(std::string_view word, std::vector<int32_t>& out) const;

  Vocabulary vocabulary_;
  Options options_;
  std::string source_;
  Trie trie_;
  /// The node behind continuing_subword_prefix.
  uint32_t continuing_;
};

/// Reads a model of type WordPiece, whose type has been read.
std::unique_ptr<Model> read_word_piece(ObjectReader& reader);

} // namespace trireme::tokenizer
