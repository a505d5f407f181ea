#include <trireme/chat/characters.h>

#include <trireme/tokenizer/unicode.h>

#include <utf8proc.h>

#include <algorithm>

namespace trireme::chat {
namespace {

using tokenizer::append_utf8;
using tokenizer::Char;
using tokenizer::char_at;
using tokenizer::char_before;

using Mapped = utf8proc_int32_t (*)(utf8proc_int32_t);

void append(std::string& out, Mapped mapped, char32_t code) {
  append_utf8(out, static_cast<char32_t>(mapped(static_cast<utf8proc_int32_t>(code))));
}

// Whether a letter behind it continues a word: it has upper and lower case.
bool is_cased(char32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}

template <typename Each>
void for_each_char(std::string_view text, Each&& each) {
  for (size_t at = 0; at < text.size();) {
    const Char character = char_at(text, at);
    each(at, character);
    at += character.bytes;
  }
}

bool contains(std::string_view chars, char32_t code) {
  for (size_t at = 0; at < chars.size();) {
    const Char character = char_at(chars, at);
    if (character.code == code) {
      return true;
    }
    at += character.bytes;
  }
  return false;
}

} // namespace

size_t length(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U; }));
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> found;
  for_each_char(text, [&](size_t at, Char character) { found.push_back(text.substr(at, character.bytes)); });
  return found;
}

size_t byte_of(std::string_view text, size_t index) {
  size_t at = 0;
  while (index > 0 && at < text.size()) {
    at += char_at(text, at).bytes;
    --index;
  }
  return at;
}

bool is_space(char32_t code) {
  return (code >= 0x1c && code <= 0x1f) || tokenizer::is_space(code);
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> chars) {
  const auto goes = [&](char32_t code) { return chars ? contains(*chars, code) : is_space(code); };
  while (side != Side::right && !text.empty()) {
    const Char first = char_at(text, 0);
    if (!goes(first.code)) {
      break;
    }
    text.remove_prefix(first.bytes);
  }
  while (side != Side::left && !text.empty()) {
    const size_t last = char_before(text, text.size());
    if (!goes(char_at(text, last).code)) {
      break;
    }
    text = text.substr(0, last);
  }
  return text;
}

std::string lower(std::string_view text) {
  std::string out;
  for_each_char(text, [&](size_t, Char character) { append(out, utf8proc_tolower, character.code); });
  return out;
}

std::string upper(std::string_view text) {
  std::string out;
  for_each_char(text, [&](size_t, Char character) { append(out, utf8proc_toupper, character.code); });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for_each_char(text, [&](size_t at, Char character) {
    append(out, at == 0 ? utf8proc_totitle : utf8proc_tolower, character.code);
  });
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for_each_char(text, [&](size_t, Char character) {
    append(out, in_word ? utf8proc_tolower : utf8proc_totitle, character.code);
    in_word = is_cased(character.code);
  });
  return out;
}

std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t most, Budget& budget) {
  std::string out;
  if (old.empty()) {
    throw NotSupported("replace does not support an empty text to replace");
  }
  for (; most != 0; --most) {
    const size_t found = text.find(old);
    if (found == std::string_view::npos) {
      break;
    }
    budget.append(out, text.substr(0, found));
    budget.append(out, with);
    budget.spend();
    text.remove_prefix(found + old.size());
  }
  budget.append(out, text);
  return out;
}

std::vector<std::string_view> split_text(std::string_view text, std::optional<std::string_view> separator,
                                         int64_t most) {
  std::vector<std::string_view> parts;
  if (separator) {
    for (; most != 0; --most) {
      const size_t found = text.find(*separator);
      if (found == std::string_view::npos) {
        break;
      }
      parts.push_back(text.substr(0, found));
      text.remove_prefix(found + separator->size());
    }
    parts.push_back(text);
    return parts;
  }
  for (text = strip(text, Side::left); !text.empty() && most != 0; --most) {
    size_t end = 0;
    while (end < text.size() && !is_space(char_at(text, end).code)) {
      end += char_at(text, end).bytes;
    }
    parts.push_back(text.substr(0, end));
    text = strip(text.substr(end), Side::left);
  }
  if (!text.empty()) {
    parts.push_back(text);
  }
  return parts;
}

} // namespace trireme::chat
