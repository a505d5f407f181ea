#include <trireme/chat/characters.h>

#include <trireme/tokenizer/unicode.h>

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

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

// The characters that strip() takes away. Many are looked up in a table, a few in their text.
class CharSet {
 public:
  explicit CharSet(std::string_view chars) : chars_(chars) {
    constexpr size_t kFew = 32;
    if (chars.size() > kFew) {
      table_.resize(kCodePoints);
      for_each_char(chars, [&](size_t, Char character) { table_[character.code] = true; });
    }
  }

  bool contains(char32_t code) const {
    if (!table_.empty()) {
      return table_[code];
    }
    bool found = false;
    for_each_char(chars_, [&](size_t, Char character) { found = found || character.code == code; });
    return found;
  }

 private:
  static constexpr size_t kCodePoints = 0x110000;
  std::string_view chars_;
  std::vector<bool> table_;
};

} // namespace

size_t length(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U; }));
}

// The C library's memmem() is linear; std::string's find() compares all of `wanted` at each place.
size_t find_first(std::string_view text, std::string_view wanted) {
  if (wanted.empty()) {
    return 0;
  }
  const void* const found = ::memmem(text.data(), text.size(), wanted.data(), wanted.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_last(std::string_view text, std::string_view wanted) {
  constexpr size_t kShort = 64;
  if (wanted.size() <= kShort || wanted.size() > text.size()) {
    return text.rfind(wanted);
  }
  const size_t found = find_first(std::string(text.rbegin(), text.rend()), std::string(wanted.rbegin(), wanted.rend()));
  return found == std::string_view::npos ? found : text.size() - found - wanted.size();
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
  const CharSet set(chars.value_or(""));
  const auto goes = [&](char32_t code) { return chars ? set.contains(code) : is_space(code); };
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
  budget.spend_pass(text.size());
  budget.spend_pass(std::min(old.size(), text.size()));
  for (; most != 0; --most) {
    const size_t found = find_first(text, old);
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

std::vector<std::string_view> split_text(std::string_view text, std::optional<std::string_view> separator, int64_t most,
                                         Budget& budget) {
  budget.spend_pass(text.size());
  std::vector<std::string_view> parts;
  const auto add = [&](std::string_view part) {
    budget.spend_elements(parts.size() + 1, 0);
    budget.spend(Budget::kStepsOfObject);
    parts.push_back(part);
  };
  if (separator) {
    budget.spend_pass(std::min(separator->size(), text.size()));
    for (; most != 0; --most) {
      const size_t found = find_first(text, *separator);
      if (found == std::string_view::npos) {
        break;
      }
      add(text.substr(0, found));
      text.remove_prefix(found + separator->size());
    }
    add(text);
    return parts;
  }
  for (text = strip(text, Side::left); !text.empty() && most != 0; --most) {
    size_t end = 0;
    while (end < text.size() && !is_space(char_at(text, end).code)) {
      end += char_at(text, end).bytes;
    }
    add(text.substr(0, end));
    text = strip(text.substr(end), Side::left);
  }
  if (!text.empty()) {
    add(text);
  }
  return parts;
}

} // namespace trireme::chat
