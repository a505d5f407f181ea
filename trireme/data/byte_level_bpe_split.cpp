#include <trireme/data/byte_level_bpe_split.h>

#include <trireme/data/byte_level_bpe_unicode.h>

#include <array>

namespace trireme::data {
namespace {

struct Char {
  CharClass kind = CharClass::other;
  size_t bytes = 1;
};

const std::array<CharClass, 128>& ascii_classes() {
  static const std::array<CharClass, 128> classes = [] {
    std::array<CharClass, 128> all{};
    for (size_t code = 0; code < all.size(); ++code) {
      all[code] = char_class(static_cast<char32_t>(code));
    }
    return all;
  }();
  return classes;
}

// Decodes one character. Overlong forms, surrogates and values past U+10FFFF are invalid: one byte, "other".
Char char_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) {
    return {ascii_classes()[lead], 1};
  }
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || at + length > text.size()) {
    return {};
  }
  char32_t code = lead & (0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) {
      return {};
    }
    code = code << 6 | (byte(at + i) & 0x3f);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
    return {};
  }
  return {char_class(code), length};
}

size_t run_end(std::string_view text, size_t at, CharClass kind) {
  while (at < text.size()) {
    const Char next = char_at(text, at);
    if (next.kind != kind) {
      break;
    }
    at += next.bytes;
  }
  return at;
}

size_t contraction(std::string_view rest) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (rest.substr(0, ending.size()) == ending) {
      return ending.size();
    }
  }
  return 0;
}

} // namespace

size_t word_end(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    if (const size_t length = contraction(text.substr(at))) {
      return at + length;
    }
  }
  // One space, only U+0020, may begin a run of anything but white space.
  const size_t start = text[at] == ' ' && at + 1 < text.size() ? at + 1 : at;
  const CharClass kind = char_at(text, start).kind;
  if (kind != CharClass::space) {
    return run_end(text, start, kind);
  }
  size_t last = at;
  size_t end = at;
  while (end < text.size()) {
    const Char next = char_at(text, end);
    if (next.kind != CharClass::space) {
      // \s+(?!\S) leaves its last character to the next word, unless it is the only one.
      return last > at ? last : end;
    }
    last = end;
    end += next.bytes;
  }
  return end;
}

size_t space_before(std::string_view text, size_t end) {
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && end - start < 4 && (static_cast<unsigned char>(text[start]) & 0xc0) == 0x80) {
      --start;
    }
    const Char last = char_at(text.substr(0, end), start);
    if (last.kind != CharClass::space || start + last.bytes != end) {
      break;
    }
    end = start;
  }
  return end;
}

size_t space_after(std::string_view text, size_t at) {
  return run_end(text, at, CharClass::space);
}

} // namespace trireme::data
