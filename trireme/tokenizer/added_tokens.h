#pragma once

#include <trireme/tokenizer/function_ref.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

/// A token that is searched for in the text before all other steps, "<|endoftext|>" for example.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  /// Whether it includes the white space before or after it.
  bool lstrip = false;
  bool rstrip = false;
  /// Not where a letter or digit is beside it.
  bool single_word = false;
  /// Searched for in normalized text, after all tokens that are not normalized.
  bool normalized = false;
  /// Left out where decoding skips special tokens.
  bool special = false;
};

/// A part of a text: an added token (its id, no text), or the text between two of them (no id).
struct TextPart {
  std::string_view text;
  std::optional<int32_t> id;
};

/// Finds added tokens: the leftmost first, and the longest of several at one place. Cost: one look-up per byte of text,
/// plus the tokens that begin with that byte.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Tokens without content are never found.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Calls `next` with the added tokens and the non-empty text between them, in order. `text` is valid UTF-8.
  void split(std::string_view text, FunctionRef<void(TextPart)> next) const;

 private:
  size_t candidate(std::string_view text, size_t at) const;
  const AddedToken* match(std::string_view rest) const;

  /// By first byte, the longest first.
  std::array<std::vector<AddedToken>, 256> by_first_;
  /// The only first byte, if there is only one.
  std::optional<char> only_first_;
  bool empty_ = true;
};

} // namespace trireme::tokenizer
