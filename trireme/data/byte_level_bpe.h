#pragma once

#include <trireme/data/byte_level_bpe_added.h>
#include <trireme/data/tokenizer.h>

#include <array>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

namespace trireme::data {

/// The model of a byte-level BPE: vocabulary, merges and options.
struct ByteLevelBpeModel {
  struct Token {
    /// The token's bytes, not the printable characters that the files write for them.
    std::string bytes;
    int32_t id;
    /// False for a token that the files do not write in that alphabet: encoding never returns it.
    bool from_bytes = true;
  };
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };
  /// Ids must differ, but need not be dense.
  std::vector<Token> vocab;
  /// The first has the highest priority. If a pair has two merges, the later one applies.
  std::vector<Merge> merges;
  std::vector<AddedToken> added;
  /// Inserts a space before a piece of text that does not begin with one.
  bool add_prefix_space = false;
  /// Splits text into words with GPT-2's pattern first; false: a piece is one word.
  bool use_regex = true;
  /// Encodes a word that is a token as that token, without merges.
  bool ignore_merges = false;
  /// Id for bytes without a token; -1: such a byte is an error.
  int32_t unk_id = -1;
  /// Merges neighbouring unknown bytes of a word into one unk_id.
  bool fuse_unk = false;
};

/// The byte-level byte pair encoding of GPT-2 (Sennrich et al. 2016, Radford et al. 2019), with the ids
/// that Hugging Face's `tokenizers` gives without special tokens around (add_special_tokens=False).
///
/// encode: any bytes; text that is not UTF-8 is encoded too. Cost: about 0.05 s a MB of prose; words
///   seen before in the same call cost a look-up; a word of n bytes n log n. InputError for a byte without a
///   token when there is no unknown token (Hugging Face drops it silently), and for a word of 2^31 bytes or more.
/// decode: the exact inverse unless spaces were added or stripped; added tokens appear with their content.
class ByteLevelBpe final : public Tokenizer {
 public:
  /// `source` names the model in messages. Errors: InputError for ids that are negative or repeated.
  ByteLevelBpe(const ByteLevelBpeModel& model, std::string source);

  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override {
    return static_cast<int64_t>(tokens_.size());
  }
  std::string describe() const override;

 private:
  struct Rule {
    int32_t rank;
    int32_t result;
  };
  class WordCache;

  void encode_piece(std::string_view piece, WordCache& cache, std::vector<int32_t>& out) const;
  void encode_word(std::string_view word, std::vector<int32_t>& out) const;
  void start_symbols(std::string_view word, std::vector<int32_t>& out) const;

  std::string source_;
  bool add_prefix_space_;
  bool use_regex_;
  bool ignore_merges_;
  bool fuse_unk_;
  int32_t unk_id_;
  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<std::string, int32_t> whole_words_;
  std::unordered_map<uint64_t, Rule> rules_;
  std::vector<std::string> tokens_;
  std::vector<bool> known_;
  AddedTokens raw_added_;
  AddedTokens normalized_added_;
};

/// Reads Hugging Face's tokenizer.json. Supported: model BPE (merges as "a b" or ["a", "b"]), pre-tokenizer ByteLevel,
/// no normalizer, decoder ByteLevel or none; added tokens with lstrip, rstrip and normalized. Ignored: post_processor
/// (encode adds no tokens), truncation, padding. Errors: InputError with file, line and column for damage, and by name
/// for anything unsupported that would change the ids.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::filesystem::path& file);

/// Reads GPT-2's pair of files: {"token": id, ...} and one merge "a b" per line. Adds no space before the text.
/// "<|endoftext|>" in the vocabulary is a special token, as in Hugging Face's GPT2TokenizerFast. Errors: InputError
/// with file and line.
std::unique_ptr<Tokenizer> read_vocab_and_merges(const std::filesystem::path& vocab,
                                                 const std::filesystem::path& merges);

} // namespace trireme::data
