#pragma once

#include <trireme/tokenizer/added_tokens.h>
#include <trireme/tokenizer/decoder.h>
#include <trireme/tokenizer/model.h>
#include <trireme/tokenizer/normalizer.h>
#include <trireme/tokenizer/post_processor.h>
#include <trireme/tokenizer/pre_tokenizer.h>
#include <trireme/tokenizer/tokenizer.h>
#include <trireme/tokenizer/word_cache.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace trireme::tokenizer {

/// The parts of a tokenizer, in the order in which encoding uses them.
struct TokenizerParts {
  std::vector<AddedToken> added;
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  std::unique_ptr<Model> model;
  PostProcessor post_processor;
  Decoders decoders;
  bool has_decoder = false;
};

/// Text to ids as Hugging Face's tokenizers does it: added tokens are found, the text between them is normalized and
/// split into words, and the model turns every word into tokens.
///
/// encode: bytes that are not UTF-8 become U+FFFD first (replace_invalid_utf8()). Words are remembered from call to
/// call. decode: with the decoder ByteLevel last, the bytes of the ids: a character may be cut. Without a decoder,
/// tokens with
///   spaces between them. Otherwise valid UTF-8.
class TextTokenizer final : public Tokenizer {
 public:
  /// `source` names the tokenizer in messages. Errors: InputError for an added token whose id is not the one that
  /// Hugging Face's tokenizers gives it.
  TextTokenizer(TokenizerParts parts, std::string source);

  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const override;
  std::vector<int32_t> encode_with_threads(std::string_view text, int threads) const override;
  bool is_local() const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::string describe() const override;

 private:
  class Lease;
  struct Chunk;
  /// What decoding knows of an id.
  struct Token {
    std::string text; // its bytes, if the decoder is only_bytes
    bool known = false;
    bool special = false;
  };

  void add_tokens();
  void set_token(int32_t id, std::string text, bool special);

  void encode_valid(std::string_view text, WordCache& cache, std::vector<int32_t>& out) const;
  void split_from(size_t step, Word word, WordCache& cache, std::vector<int32_t>& out) const;
  void encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& out) const;
  PreTokenizer::Cut next_cut(std::string_view text, size_t begin) const;
  size_t encode_to_next_cut(Word piece, size_t begin, WordCache& cache, std::vector<int32_t>& out) const;
  void encode_chunk(Word piece, Chunk& chunk) const;
  bool encode_in_chunks(Word piece, int threads, WordCache& cache, std::vector<int32_t>& out) const;
  void for_each_piece(std::string_view text, int threads, FunctionRef<void(int32_t)> added,
                      FunctionRef<void(Word)> piece) const;

  TokenizerParts parts_;
  std::string source_;
  AddedTokens raw_added_;
  AddedTokens normalized_added_;
  std::vector<Token> tokens_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<WordCache>> idle_caches_;
};

} // namespace trireme::tokenizer
