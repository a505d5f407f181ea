#include <trireme/chat/lexer.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/chat/characters.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>

namespace trireme::chat {
namespace {

using Type = Token::Type;

bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

std::optional<uint32_t> digit_of(char c, uint32_t base) {
  const uint32_t digit = is_ascii_digit(c)      ? static_cast<uint32_t>(c - '0')
                         : c >= 'a' && c <= 'f' ? static_cast<uint32_t>(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? static_cast<uint32_t>(c - 'A' + 10)
                                                : 99;
  return digit < base ? std::optional(digit) : std::nullopt;
}

// \r\n and \r become \n; one at the end goes.
std::string normalize_lines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      out += '\n';
      i += i + 1 < text.size() && text[i + 1] == '\n' ? 1 : 0;
    } else {
      out += text[i];
    }
  }
  if (out.ends_with('\n')) {
    out.pop_back();
  }
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& source)
      : whole_(normalize_lines(tokenizer::replace_invalid_utf8(text))), source_(source), text_(whole_) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      read_text();
    }
    add(Type::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& next = "") const {
    fail_at(source_, line_, what, next);
  }

  void add(Type type, std::string text = {}) {
    tokens_.push_back({.type = type, .line = line_, .text = std::move(text)});
  }

  void move_to(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    if (end > at_) {
      line_starts_ = text_[end - 1] == '\n';
    }
    at_ = end;
  }

  size_t skip_spaces(size_t at) const {
    while (at < text_.size()) {
      const auto [code, bytes] = tokenizer::char_at(text_, at);
      if (!is_space(code)) {
        break;
      }
      at += bytes;
    }
    return at;
  }

  // The word of a tag such as {% raw %} at `at`, which is behind "{%" and its sign. Returns the place behind it.
  std::optional<size_t> skip_word(size_t at, std::string_view word) const {
    at = skip_spaces(at);
    return text_.substr(at).starts_with(word) ? std::optional(skip_spaces(at + word.size())) : std::nullopt;
  }

  // Behind "-%}" and spaces, or "%}" (and a line end), or "+%}".
  std::optional<size_t> skip_end(size_t at, std::string_view end, bool takes_plus, bool trims) const {
    const std::string_view rest = text_.substr(at);
    if (rest.starts_with('-') && rest.substr(1).starts_with(end)) {
      return skip_spaces(at + 1 + end.size());
    }
    if (takes_plus && rest.starts_with('+') && rest.substr(1).starts_with(end)) {
      return at + 1 + end.size();
    }
    if (!rest.starts_with(end)) {
      return std::nullopt;
    }
    const size_t behind = at + end.size();
    return trims && behind < text_.size() && text_[behind] == '\n' ? behind + 1 : behind;
  }

  // Text up to a tag whose sign is `sign` (0: none).
  void add_text(std::string_view text, char sign, bool is_print) {
    if (sign == '-') {
      text = strip(text, Side::right);
    } else if (sign != '+' && !is_print) {
      const size_t line_end = text.rfind('\n');
      const size_t begin = line_end == std::string_view::npos ? 0 : line_end + 1;
      if ((begin > 0 || line_starts_) && strip(text.substr(begin), Side::left).empty()) {
        text = text.substr(0, begin);
      }
    }
    if (!text.empty()) {
      add(Type::text, std::string(text));
    }
  }

  char sign_at(size_t at) const {
    return at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : '\0';
  }

  void read_text() {
    size_t tag = at_;
    while (true) {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 == text_.size()) {
        add(Type::text, std::string(text_.substr(at_)));
        move_to(text_.size());
        return;
      }
      const char next = text_[tag + 1];
      if (next == '{' || next == '%' || next == '#') {
        break;
      }
      ++tag;
    }
    const char kind = text_[tag + 1];
    const char sign = sign_at(tag + 2);
    add_text(text_.substr(at_, tag - at_), sign, kind == '{');
    move_to(tag);
    const size_t inside = tag + (sign == '\0' ? 2 : 3);
    if (kind == '#') {
      read_comment(inside);
    } else if (kind == '{') {
      add(Type::print_begin);
      move_to(inside);
      read_inside("}}", Type::print_end);
    } else if (const auto word_end = skip_word(inside, "raw");
               word_end && skip_end(*word_end, "%}", /*takes_plus=*/false, /*trims=*/false)) {
      read_raw(*skip_end(*word_end, "%}", false, false));
    } else {
      add(Type::block_begin);
      move_to(inside);
      read_inside("%}", Type::block_end);
    }
  }

  void read_comment(size_t inside) {
    const size_t mark = text_.find("#}", inside);
    if (mark == std::string_view::npos) {
      fail("Missing end of comment tag");
    }
    const bool has_sign = mark > inside && sign_at(mark - 1) != '\0';
    move_to(*skip_end(has_sign ? mark - 1 : mark, "#}", /*takes_plus=*/true, /*trims=*/true));
  }

  void read_raw(size_t begin) {
    move_to(begin);
    for (size_t tag = text_.find("{%", begin); tag != std::string_view::npos; tag = text_.find("{%", tag + 1)) {
      const char sign = sign_at(tag + 2);
      const auto word_end = skip_word(tag + (sign == '\0' ? 2 : 3), "endraw");
      const auto end = word_end ? skip_end(*word_end, "%}", /*takes_plus=*/true, /*trims=*/true) : std::nullopt;
      if (end) {
        add_text(text_.substr(begin, tag - begin), sign, /*is_print=*/false);
        move_to(*end);
        return;
      }
    }
    fail("Missing end of raw directive");
  }

  void read_inside(std::string_view end, Type end_type) {
    const bool is_block = end_type == Type::block_end;
    std::string open; // the closing brackets that are due
    while (true) {
      move_to(skip_spaces(at_));
      if (at_ == text_.size()) {
        return; // the parser tells what is missing
      }
      const auto behind = open.empty() ? skip_end(at_, end, is_block, is_block) : std::nullopt;
      if (behind) {
        add(end_type);
        move_to(*behind);
        return;
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = text_[at_];
    if (is_ascii_digit(c)) {
      read_number();
    } else if (is_name_start(c)) {
      size_t end = at_;
      while (end < text_.size() && (is_name_start(text_[end]) || is_ascii_digit(text_[end]))) {
        ++end;
      }
      add(Type::name, std::string(text_.substr(at_, end - at_)));
      move_to(end);
    } else if (c == '\'' || c == '"') {
      read_string();
    } else {
      read_sign(open);
    }
  }

  void read_sign(std::string& open) {
    constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    std::string_view sign = text_.substr(at_, 2);
    if (std::ranges::find(kLong, sign) == std::end(kLong)) {
      sign = text_.substr(at_, 1);
      if (std::string_view("+-/*%~[](){}><=.:|,;").find(sign[0]) == std::string_view::npos) {
        fail(concat("unexpected character '", printable(sign), '\''));
      }
    }
    constexpr std::string_view kOpening = "([{";
    constexpr std::string_view kClosing = ")]}";
    if (const size_t kind = kOpening.find(sign[0]); kind != std::string_view::npos) {
      open += kClosing[kind];
    } else if (kClosing.find(sign[0]) != std::string_view::npos) {
      if (open.empty() || open.back() != sign[0]) {
        fail(open.empty() ? concat("unexpected '", sign, '\'')
                          : concat("unexpected '", sign, "', expected '", open.back(), '\''));
      }
      open.pop_back();
    }
    add(Type::sign, std::string(sign));
    move_to(at_ + sign.size());
  }

  // Digits with single _ between them.
  size_t skip_digits(size_t at, uint32_t base) const {
    while (at < text_.size() && (digit_of(text_[at], base) ||
                                 (text_[at] == '_' && at + 1 < text_.size() && digit_of(text_[at + 1], base)))) {
      ++at;
    }
    return at;
  }

  bool has_digit(size_t at) const { return at < text_.size() && is_ascii_digit(text_[at]); }

  void read_number() {
    const size_t whole = skip_digits(at_, 10);
    size_t end = whole;
    if (at_ == 0 || text_[at_ - 1] != '.') { // else it is an index, as in a.0.1
      if (end < text_.size() && text_[end] == '.' && has_digit(end + 1)) {
        end = skip_digits(end + 1, 10);
      }
      if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
        const size_t sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
        if (has_digit(end + 1 + sign)) {
          end = skip_digits(end + 1 + sign, 10);
        }
      }
    }
    const bool is_real = end > whole;
    uint32_t base = 10;
    size_t begin = at_;
    if (!is_real && text_[at_] == '0') {
      const char letter = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
      base = letter == 'x' || letter == 'X'   ? 16
             : letter == 'o' || letter == 'O' ? 8
             : letter == 'b' || letter == 'B' ? 2
                                              : 10;
      const size_t prefixed = base == 10 ? 0 : skip_digits(at_ + 2, base);
      if (prefixed > at_ + 2) {
        begin = at_ + 2;
        end = prefixed;
      } else {
        base = 10;
        while (end > at_ && text_.substr(at_, end - at_).find_first_not_of("0_") != std::string_view::npos) {
          --end; // 01 is 0 and 1, as for Jinja
        }
      }
    }
    add_number(text_.substr(begin, end - begin), base, is_real);
    move_to(end);
  }

  void add_number(std::string_view shown, uint32_t base, bool is_real) {
    std::string digits(shown);
    std::erase(digits, '_');
    if (is_real) {
      double value = 0;
      const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (result.ec == std::errc::result_out_of_range) { // as Python: inf, or 0
        value = std::strtod(digits.c_str(), nullptr);
      }
      add(Type::real, std::string(shown));
      tokens_.back().real = value;
      return;
    }
    int64_t value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
    if (result.ec != std::errc()) {
      fail(concat("the integer ", shown.substr(0, 40), " does not fit into 64 bits"));
    }
    add(Type::integer, std::string(shown));
    tokens_.back().integer = value;
  }

  void read_string() {
    const char quote = text_[at_];
    std::string content;
    size_t at = at_ + 1;
    while (at < text_.size() && text_[at] != quote) {
      if (text_[at] == '\\') {
        at = read_escape(at + 1, content);
      } else {
        content += text_[at++];
      }
    }
    if (at >= text_.size()) {
      fail("a string has no end", concat("Close it with ", quote, '.'));
    }
    add(Type::string, std::move(content));
    move_to(at + 1);
  }

  // `at` is behind the backslash. Returns the place behind the escape.
  size_t read_escape(size_t at, std::string& content) {
    if (at == text_.size()) {
      return at;
    }
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = text_[at];
    if (const size_t found = kLetters.find(c); found != std::string_view::npos) {
      content += kMeanings[found];
      return at + 1;
    }
    if (c == '\n') {
      return at + 1;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
      return read_code(at + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, /*exactly=*/true, content);
    }
    if (digit_of(c, 8)) {
      return read_code(at, 3, 8, /*exactly=*/false, content);
    }
    if (c == 'N') {
      fail("\\N{...} in a string is not supported", "Write the character itself, or \\u and its number.");
    }
    content += '\\';                             // Python keeps what is no escape
    if (static_cast<unsigned char>(c) >= 0x80) { // and Jinja writes such a character as an escape first
      const auto [code, bytes] = tokenizer::char_at(text_, at);
      char shown[16];
      std::snprintf(shown, sizeof shown,
                    code < 0x100     ? "x%02x"
                    : code < 0x10000 ? "u%04x"
                                     : "U%08x",
                    static_cast<unsigned>(code));
      content += shown;
      return at + bytes;
    }
    return at;
  }

  size_t read_code(size_t at, size_t most, uint32_t base, bool exactly, std::string& content) {
    uint32_t code = 0;
    size_t count = 0;
    while (count < most && at < text_.size() && digit_of(text_[at], base)) {
      code = code * base + *digit_of(text_[at], base);
      ++at;
      ++count;
    }
    if (exactly && count < most) {
      fail("an escape in a string is cut short", concat("It needs ", most, " hexadecimal digits."));
    }
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
      fail("an escape in a string is not a character", "Surrogates are not supported: write \\U and the number.");
    }
    tokenizer::append_utf8(content, code);
    return at;
  }

  const std::string whole_;
  const std::string& source_;
  std::string_view text_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
};

} // namespace

std::vector<Token> tokenize(std::string_view text, const std::string& source) {
  return Lexer(text, source).run();
}

void fail_at(const std::string& source, int line, const std::string& what, const std::string& next) {
  throw InputError("chat", concat(source, ":", line, ": ", what), next);
}

} // namespace trireme::chat
