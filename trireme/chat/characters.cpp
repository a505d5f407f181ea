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

constexpr char32_t kSharpS = 0xdf;
constexpr char32_t kSigma = 0x3a3;
constexpr char32_t kFinalSigma = 0x3c2;

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

char32_t title_of(char32_t code) {
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code)));
}

bool is_lower_code(char32_t code) {
  return utf8proc_islower(static_cast<utf8proc_int32_t>(code)) != 0;
}

bool is_upper_code(char32_t code) {
  return utf8proc_isupper(static_cast<utf8proc_int32_t>(code)) != 0;
}

bool is_cased(char32_t code) {
  return is_lower_code(code) || is_upper_code(code) || category(code) == UTF8PROC_CATEGORY_LT;
}

bool is_letter(char32_t code) {
  const utf8proc_category_t found = category(code);
  return found >= UTF8PROC_CATEGORY_LU && found <= UTF8PROC_CATEGORY_LO;
}

void append_upper(std::string& out, char32_t code) {
  if (code == kSharpS) {
    out += "SS";
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
  }
}

void append_title(std::string& out, char32_t code) {
  if (code == kSharpS) {
    out += "Ss";
  } else {
    append_utf8(out, title_of(code));
  }
}

// `after_cased`: the character before it is a cased one.
void append_lower(std::string& out, std::string_view text, size_t at, Char character, bool after_cased) {
  const size_t next = at + character.bytes;
  if (character.code == kSigma && after_cased && (next == text.size() || !is_cased(char_at(text, next).code))) {
    append_utf8(out, kFinalSigma);
  } else {
    tokenizer::append_lower(out, character.code);
  }
}

template <typename Each>
void for_each_char(std::string_view text, Each&& each) {
  for (size_t at = 0; at < text.size();) {
    const Char character = char_at(text, at);
    each(at, character);
    at += character.bytes;
  }
}

template <typename Is>
bool all_of(std::string_view text, Is&& is) {
  bool all = !text.empty();
  for_each_char(text, [&](size_t, Char character) { all = all && is(character.code); });
  return all;
}

bool is_line_end(char32_t code) {
  return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
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
  bool after_cased = false;
  for_each_char(text, [&](size_t at, Char character) {
    append_lower(out, text, at, character, after_cased);
    after_cased = is_cased(character.code);
  });
  return out;
}

std::string upper(std::string_view text) {
  std::string out;
  for_each_char(text, [&](size_t, Char character) { append_upper(out, character.code); });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  bool after_cased = false;
  for_each_char(text, [&](size_t at, Char character) {
    if (at == 0) {
      append_title(out, character.code);
    } else {
      append_lower(out, text, at, character, after_cased);
    }
    after_cased = is_cased(character.code);
  });
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool after_cased = false;
  for_each_char(text, [&](size_t at, Char character) {
    if (after_cased) {
      append_lower(out, text, at, character, after_cased);
    } else {
      append_title(out, character.code);
    }
    after_cased = is_cased(character.code);
  });
  return out;
}

std::string swapcase(std::string_view text) {
  std::string out;
  bool after_cased = false;
  for_each_char(text, [&](size_t at, Char character) {
    if (is_lower_code(character.code)) {
      append_upper(out, character.code);
    } else if (is_upper_code(character.code)) {
      append_lower(out, text, at, character, after_cased);
    } else {
      append_utf8(out, character.code);
    }
    after_cased = is_cased(character.code);
  });
  return out;
}

bool is_lower(std::string_view text) {
  bool any = false;
  bool other = false;
  for_each_char(text, [&](size_t, Char character) {
    any = any || is_lower_code(character.code);
    other = other || (is_cased(character.code) && !is_lower_code(character.code));
  });
  return any && !other;
}

bool is_upper(std::string_view text) {
  bool any = false;
  bool other = false;
  for_each_char(text, [&](size_t, Char character) {
    any = any || is_upper_code(character.code);
    other = other || (is_cased(character.code) && !is_upper_code(character.code));
  });
  return any && !other;
}

bool is_alpha(std::string_view text) {
  return all_of(text, is_letter);
}

bool is_digit(std::string_view text) {
  return all_of(text, [](char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; });
}

bool is_alnum(std::string_view text) {
  return all_of(text, [](char32_t code) { return is_letter(code) || tokenizer::is_number(code); });
}

bool is_all_space(std::string_view text) {
  return all_of(text, is_space);
}

std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t most, Budget& budget) {
  std::string out;
  if (old.empty()) { // between all characters
    for (size_t at = 0; most != 0; --most) {
      budget.append(out, with);
      if (at == text.size()) {
        return out;
      }
      const size_t bytes = char_at(text, at).bytes;
      budget.append(out, text.substr(at, bytes));
      at += bytes;
      if (most == 1) {
        budget.append(out, text.substr(at));
        return out;
      }
      budget.spend();
    }
    return std::string(text);
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

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Char character = char_at(text, at);
    size_t next = at + character.bytes;
    if (is_line_end(character.code)) {
      if (character.code == '\r' && next < text.size() && text[next] == '\n') {
        ++next;
      }
      lines.push_back(text.substr(begin, (keep_ends ? next : at) - begin));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) {
    lines.push_back(text.substr(begin));
  }
  return lines;
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

std::vector<std::string_view> split_text_from_right(std::string_view text, std::optional<std::string_view> separator,
                                                    int64_t most) {
  std::vector<std::string_view> parts;
  if (separator) {
    for (; most != 0; --most) {
      const size_t found = text.rfind(*separator);
      if (found == std::string_view::npos) {
        break;
      }
      parts.push_back(text.substr(found + separator->size()));
      text = text.substr(0, found);
    }
    parts.push_back(text);
  } else {
    for (text = strip(text, Side::right); !text.empty() && most != 0; --most) {
      size_t begin = text.size();
      while (begin > 0 && !is_space(char_at(text, char_before(text, begin)).code)) {
        begin = char_before(text, begin);
      }
      parts.push_back(text.substr(begin));
      text = strip(text.substr(0, begin), Side::right);
    }
    if (!text.empty()) {
      parts.push_back(text);
    }
  }
  std::ranges::reverse(parts);
  return parts;
}

} // namespace trireme::chat
