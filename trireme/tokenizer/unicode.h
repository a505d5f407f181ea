#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::tokenizer {

// UTF-8 and the properties of characters, with utf8proc's tables. Unless a function says otherwise, text is valid
// UTF-8.

/// A character and the number of its bytes.
struct Char {
  char32_t code = 0;
  size_t bytes = 1;
};

/// Returns the length of the longest beginning of `text` that is valid UTF-8. `text` may be any bytes.
size_t valid_utf8_prefix(std::string_view text);

/// Replaces what is not valid UTF-8 by U+FFFD, one for each maximal beginning of a character, as Python's
/// bytes.decode(errors="replace") and Unicode (section 3.9) do. `text` may be any bytes.
std::string replace_invalid_utf8(std::string_view text);

/// Returns the character at byte `at`. Needs at < text.size().
inline Char char_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1};
  }
  if (lead < 0xe0) {
    return {(lead & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  }
  if (lead < 0xf0) {
    return {(lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  }
  return {(lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

/// Returns the byte where the character that ends before byte `end` begins. Needs end > 0.
inline size_t char_before(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
  return end;
}

/// Appends a code point as UTF-8.
void append_utf8(std::string& text, char32_t code);

bool is_ascii(std::string_view text);

/// Unicode's property White_Space.
bool is_space(char32_t code);
/// ASCII's punctuation and symbols, and the general category P.
bool is_punctuation(char32_t code);
/// The general category N.
bool is_number(char32_t code);
/// The general categories Cc, Cf and Co.
bool is_control(char32_t code);
/// The general category Mn.
bool is_nonspacing_mark(char32_t code);
/// The general category M.
bool is_mark(char32_t code);
/// \w of Rust's regular expressions: Alphabetic, M, Nd, Pc and Join_Control.
bool is_word(char32_t code);

/// Appends the lower case of a character (one of U+0130 has two).
void append_lower(std::string& text, char32_t code);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
/// Unicode's normalization forms (UAX 15). Cost: one pass; ASCII returns at once.
void normalize(std::string& text, NormalForm form);

/// Calls `next` with each extended grapheme cluster (UAX 29).
template <typename Next>
void for_each_grapheme(std::string_view text, Next&& next);

/// True if a grapheme cluster ends between two neighbouring characters. `state` is 0 before the first pair of a text.
bool is_grapheme_break(char32_t left, char32_t right, int& state);

template <typename Next>
void for_each_grapheme(std::string_view text, Next&& next) {
  int state = 0;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Char left = char_at(text, at);
    at += left.bytes;
    if (at == text.size() || is_grapheme_break(left.code, char_at(text, at).code, state)) {
      next(text.substr(begin, at - begin));
      begin = at;
    }
  }
}

} // namespace trireme::tokenizer
