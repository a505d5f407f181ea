#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// A token that is searched for in the text before all other steps, "<|endoftext|>" for example.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  /// Whether it includes the white space before or after it.
  bool lstrip = false;
  bool rstrip = false;
  /// Searched for after all tokens that are not normalized.
  bool normalized = false;
};

/// A part of a text: an added token (its id, no text), or the text between two of them (no id).
struct TextPart {
  std::string_view text;
  std::optional<int32_t> id;
};

/// Finds added tokens: the leftmost first, and the longest of several at one position, like an Aho-Corasick
/// automaton. Cost: one look-up per byte of text, plus the tokens that begin with that byte.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Splits `text` into added tokens and the non-empty text between them, in order.
  std::vector<TextPart> split(std::string_view text) const;

 private:
  const AddedToken* match(std::string_view rest) const;

  /// By first byte, the longest first.
  std::array<std::vector<AddedToken>, 256> by_first_;
  bool empty_ = true;
};

} // namespace trireme::data
