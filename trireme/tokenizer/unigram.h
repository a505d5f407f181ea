#pragma once

#include <trireme/tokenizer/model.h>
#include <trireme/tokenizer/trie.h>

#include <array>
#include <string>
#include <vector>

namespace trireme::tokenizer {

/// A unigram language model (Kudo 2018): the tokens of a word whose log-probabilities have the largest sum. A character
/// without a token costs 10 more than the least probable token; neighbouring ones become one unknown token, or the
/// tokens "<0x00>" to "<0xFF>" of their bytes. Cost: the word's length times that of the longest token.
class Unigram final : public Model {
 public:
  struct Piece {
    std::string token;
    double score;
  };
  /// Ids are places in `pieces`. `unk_id` is -1 if there is no unknown token. `source` names the model in messages.
  Unigram(const std::vector<Piece>& pieces, int32_t unk_id, bool byte_fallback, std::string source);

  void encode(std::string_view word, std::vector<int32_t>& out) const override;

  const char* name() const override { return "Unigram"; }
  std::optional<int32_t> id_of(std::string_view token) const override;
  const std::vector<std::string>& tokens() const override { return tokens_; }
  bool has_id(int32_t id) const override { return id >= 0 && static_cast<size_t>(id) < tokens_.size(); }
  size_t num_tokens() const override { return tokens_.size(); }

 private:
  void unknown(std::string_view chars, std::vector<int32_t>& reversed) const;

  std::vector<std::string> tokens_;
  std::vector<double> scores_;
  Trie trie_;
  double unk_score_ = 0;
  int32_t unk_id_;
  bool byte_fallback_;
  std::array<int32_t, 256> byte_ids_;
  std::string source_;
};

/// Reads a model of type Unigram, whose type has been read: "vocab" is [["token", score], ...].
std::unique_ptr<Model> read_unigram(ObjectReader& reader);

} // namespace trireme::tokenizer
