#pragma once

#include <trireme/tokenizer/model.h>

#include <array>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

namespace trireme::tokenizer {

/// Two tokens that become a third. The first merges of a list come first.
struct Merge {
  int32_t left;
  int32_t right;
  int32_t result;
};

struct BpeOptions {
  /// For characters without a token; -1: such a character is an error.
  int32_t unk_id = -1;
  /// Merges neighbouring unknown characters of a word into one unk_id.
  bool fuse_unk = false;
  /// A character without a token becomes the tokens "<0x00>" to "<0xFF>" of its bytes.
  bool byte_fallback = false;
  /// Encodes a word that is a token as that token, without merges.
  bool ignore_merges = false;
  /// Before every character of a word but the first, and behind its last, in the vocabulary.
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
};

/// Byte pair encoding (Sennrich et al. 2016): a word's characters are merged pair by pair, the best merge of the word
/// first, and of several the leftmost. Cost: n log n for a word of n characters.
class Bpe final : public Model {
 public:
  /// `source` names the model in messages. If a pair has two merges, the later one counts.
  Bpe(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options, std::string source);

  void encode(std::string_view word, std::vector<int32_t>& out) const override;
  /// Sentencepiece's models have no pre-tokenizer: a text is one word. If no merge makes a token in which U+2581
  /// follows another character, words begin there.
  size_t part_end(std::string_view word, size_t at) const override;

  const char* name() const override { return "BPE"; }
  std::optional<int32_t> id_of(std::string_view token) const override { return vocabulary_.id_of(token); }
  const std::vector<std::string>& tokens() const override { return vocabulary_.tokens(); }
  bool has_id(int32_t id) const override { return vocabulary_.has_id(id); }
  size_t num_tokens() const override { return vocabulary_.size(); }

 private:
  struct Rule {
    uint64_t pair = ~uint64_t{0};
    int32_t rank = 0;
    int32_t result = 0;
  };
  struct Symbol;
  struct Candidate;

  void add_rule(uint64_t pair, int32_t rank, int32_t result);
  const Rule* find_rule(int32_t left, int32_t right) const;
  std::optional<int32_t> char_id(std::string_view word, size_t at, size_t bytes) const;
  void unknown(std::string_view word, std::string_view chars, size_t& pending, std::vector<int32_t>& out) const;
  void start_symbols(std::string_view word, std::vector<int32_t>& out) const;
  void merge(std::vector<int32_t>& ids, size_t begin) const;

  Vocabulary vocabulary_;
  BpeOptions options_;
  std::string source_;
  /// A hash table with open addressing: a power of two slots, at most half of them used.
  std::vector<Rule> rules_;
  uint64_t mask_ = 0;
  /// Ids of the first characters of Unicode, and of others; -1: no token.
  std::array<int32_t, 0x250> low_ids_;
  std::unordered_map<char32_t, int32_t> high_ids_;
  /// Ids of "<0x00>" to "<0xFF>"; -1: no token.
  std::array<int32_t, 256> byte_ids_;
  bool has_parts_ = false;
};

/// Reads a model of type BPE, whose type has been read. Merges are "a b" or ["a", "b"].
std::unique_ptr<Model> read_bpe(ObjectReader& reader);

/// Reads merges as GPT-2's merges.txt has them, one "a b" per line. Errors: InputError with file and line.
std::vector<Merge> read_merges(const std::filesystem::path& file, const Vocabulary& vocabulary);

} // namespace trireme::tokenizer
