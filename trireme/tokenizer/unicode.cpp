#include <trireme/tokenizer/unicode.h>

#include <trireme/base/error.h>

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace trireme::tokenizer {
namespace {

// The number of bytes at `at` that begin a character: all of it (`whole`), or as much as is right of it.
struct Beginning {
  size_t bytes;
  bool whole;
};

Beginning beginning_at(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) {
    return {1, true};
  }
  if (lead < 0xc2 || lead > 0xf4) {
    return {1, false};
  }
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  // The second byte of these has a smaller range: no overlong forms, surrogates or values past U+10FFFF.
  unsigned char least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  unsigned char most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) {
      return {i, false};
    }
    const auto byte = static_cast<unsigned char>(text[at + i]);
    if (byte < least || byte > most) {
      return {i, false};
    }
    least = 0x80;
    most = 0xbf;
  }
  return {length, true};
}

// Skips ASCII, eight bytes at a time.
size_t skip_ascii(std::string_view text, size_t at) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  while (at + 8 <= text.size()) {
    uint64_t eight;
    std::memcpy(&eight, text.data() + at, 8);
    if ((eight & kHighBits) != 0) {
      break;
    }
    at += 8;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) {
    ++at;
  }
  return at;
}

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_in(char32_t code, utf8proc_category_t first, utf8proc_category_t last) {
  const utf8proc_category_t found = category(code);
  return found >= first && found <= last;
}

} // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = skip_ascii(text, 0);
  while (at < text.size()) {
    const Beginning next = beginning_at(text, at);
    if (!next.whole) {
      break;
    }
    at += next.bytes;
    if (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) {
      at = skip_ascii(text, at);
    }
  }
  return at;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (true) {
    const size_t valid = valid_utf8_prefix(text);
    out += text.substr(0, valid);
    if (valid == text.size()) {
      return out;
    }
    out += "\xEF\xBF\xBD";
    text.remove_prefix(valid + beginning_at(text, valid).bytes);
  }
}

void append_utf8(std::string& text, char32_t code) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

bool is_ascii(std::string_view text) {
  return skip_ascii(text, 0) == text.size();
}

bool is_space(char32_t code) {
  if (code < 0x80) {
    return code == ' ' || (code >= 0x09 && code <= 0x0d);
  }
  return code == 0x85 || is_in(code, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP);
}

bool is_punctuation(char32_t code) {
  if (code < 0x80) {
    return code > ' ' && code < 0x7f && !(code >= '0' && code <= '9') &&
           !((code | 0x20) >= 'a' && (code | 0x20) <= 'z');
  }
  return is_in(code, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool is_number(char32_t code) {
  if (code < 0x80) {
    return code >= '0' && code <= '9';
  }
  return is_in(code, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool is_control(char32_t code) {
  const utf8proc_category_t found = category(code);
  return found == UTF8PROC_CATEGORY_CC || found == UTF8PROC_CATEGORY_CF || found == UTF8PROC_CATEGORY_CO;
}

bool is_nonspacing_mark(char32_t code) {
  return code >= 0x80 && category(code) == UTF8PROC_CATEGORY_MN;
}

bool is_mark(char32_t code) {
  return code >= 0x80 && is_in(code, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME);
}

bool is_word(char32_t code) {
  if (code < 0x80) {
    return code == '_' || (code >= '0' && code <= '9') || ((code | 0x20) >= 'a' && (code | 0x20) <= 'z');
  }
  const utf8proc_category_t found = category(code);
  // Symbols that are Alphabetic: letters in circles and squares.
  const bool enclosed = (code >= 0x24b6 && code <= 0x24e9) || (code >= 0x1f130 && code <= 0x1f149) ||
                        (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189);
  return (found >= UTF8PROC_CATEGORY_LU && found <= UTF8PROC_CATEGORY_NL) || found == UTF8PROC_CATEGORY_PC ||
         enclosed || code == 0x200c || code == 0x200d;
}

void append_lower(std::string& text, char32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code);
  } else if (code == 0x130) {
    text += "i\xcc\x87";
  } else {
    append_utf8(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
  }
}

void normalize(std::string& text, NormalForm form) {
  if (is_ascii(text)) {
    return;
  }
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  options |= form == NormalForm::nfkc || form == NormalForm::nfkd ? UTF8PROC_COMPAT : 0;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(options));
  if (bytes < 0) {
    throw Error("tokenizer",
                concat("a text of ", text.size(), " bytes cannot be normalized: ", utf8proc_errmsg(bytes)));
  }
  text.assign(reinterpret_cast<const char*>(result), static_cast<size_t>(bytes));
  std::free(result); // NOLINT(bugprone-unhandled-exception-at-new): utf8proc_map() allocates with malloc
}

bool is_grapheme_break(char32_t left, char32_t right, int& state) {
  // Before utf8proc is asked: nearly all pairs.
  if (left < 0x80 && right < 0x80) {
    state = 0;
    return !(left == '\r' && right == '\n');
  }
  return utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(left), static_cast<utf8proc_int32_t>(right),
                                          &state);
}

} // namespace trireme::tokenizer
