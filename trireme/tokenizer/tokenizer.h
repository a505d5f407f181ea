#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

/// Converts text to token ids and back. All members are const and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// The ids of `text`, each in [0, vocab_size()). With `add_special_tokens` also the begin, end or other tokens that
  /// the tokenizer's post-processor adds. Pads and truncates nothing.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const = 0;
  /// The same ids without special tokens, by up to `threads` threads: for long texts.
  virtual std::vector<int32_t> encode_with_threads(std::string_view text, int threads) const;
  /// Whether the ids at a place may be found from the text around it. False if they depend on the number of characters
  /// before it, however far away.
  virtual bool is_local() const { return true; }
  /// The bytes of the ids; one id may be only a part of a UTF-8 character. `skip_special_tokens` leaves special tokens
  /// out. Errors: InputError naming the position of an id without a token.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const = 0;
  /// One more than the largest id.
  virtual int64_t vocab_size() const = 0;
  /// "bytes (256 tokens)" or "BPE (50257 tokens, gpt2/tokenizer.json)".
  virtual std::string describe() const = 0;
};

/// Every byte is a token: ids 0 to 255; decoding restores any content exactly.
class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const override;
  int64_t vocab_size() const override { return 256; }
  std::string describe() const override { return "bytes (256 tokens)"; }
};

/// Makes the tokenizer that `spec` names:
///   "bytes"                     ByteTokenizer
///   "PATH/tokenizer.json"       a file of Hugging Face's tokenizers, see read_tokenizer.h
///   "PATH/vocab.json"           GPT-2's pair: the merges are merges.txt or vocab.bpe beside it
///   "VOCAB.json,MERGES.txt"     the same pair under any names
///   "FOLDER"                    tokenizer.json, vocab.json + merges.txt or encoder.json + vocab.bpe in it
/// Errors: InputError for anything else, and for files that cannot be used.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec);

} // namespace trireme::tokenizer
