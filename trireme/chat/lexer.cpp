#include <trireme/chat/lexer.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/chat/characters.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>
#include <charconv>
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

  // Behind "-%}" and spaces, or "%}" and a line end.
  std::optional<size_t> skip_end(size_t at, std::string_view end) const {
    const std::string_view rest = text_.substr(at);
    if (rest.starts_with('-') && rest.substr(1).starts_with(end)) {
      return skip_spaces(at + 1 + end.size());
    }
    if (!rest.starts_with(end)) {
      return std::nullopt;
    }
    const size_t behind = at + end.size();
    return end != "}}" && behind < text_.size() && text_[behind] == '\n' ? behind + 1 : behind;
  }

  // Text up to a tag.
  void add_text(std::string_view text, bool strips, bool is_print) {
    if (strips) {
      text = strip(text, Side::right);
    } else if (!is_print) {
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

  void read_text() {
    size_t tag = text_.find('{', at_);
    while (tag < text_.size() &&
           (tag + 1 == text_.size() || std::string_view("{%#").find(text_[tag + 1]) == std::string_view::npos)) {
      tag = text_.find('{', tag + 1);
    }
    if (tag == std::string_view::npos) {
      add(Type::text, std::string(text_.substr(at_)));
      move_to(text_.size());
      return;
    }
    const char kind = text_[tag + 1];
    const bool strips = text_.substr(tag + 2).starts_with('-');
    if (text_.substr(tag + 2).starts_with('+')) {
      fail("'+' at the begin of a tag is not supported");
    }
    add_text(text_.substr(at_, tag - at_), strips, kind == '{');
    move_to(tag);
    const size_t inside = tag + (strips ? 3 : 2);
    if (kind == '#') {
      read_comment(inside);
    } else if (kind == '{') {
      add(Type::print_begin, "{{");
      move_to(inside);
      read_inside("}}", Type::print_end);
    } else {
      add(Type::block_begin, "{%");
      move_to(inside);
      read_inside("%}", Type::block_end);
    }
  }

  void read_comment(size_t inside) {
    const size_t mark = text_.find("#}", inside);
    if (mark == std::string_view::npos) {
      fail("Missing end of comment tag");
    }
    if (mark > inside && text_[mark - 1] == '+') {
      fail("'+' at the end of a tag is not supported");
    }
    const bool strips = mark > inside && text_[mark - 1] == '-';
    move_to(*skip_end(strips ? mark - 1 : mark, "#}"));
  }

  void read_inside(std::string_view end, Type end_type) {
    std::string open; // the closing brackets that are due
    while (true) {
      move_to(skip_spaces(at_));
      if (at_ == text_.size()) {
        return; // the parser tells what is missing
      }
      const auto behind = open.empty() ? skip_end(at_, end) : std::nullopt;
      if (behind) {
        add(end_type, std::string(end));
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

  void read_number() {
    const auto skip_digits = [&](size_t at) {
      return std::min(text_.find_first_not_of("0123456789", at), text_.size());
    };
    size_t end = skip_digits(at_);
    const size_t whole = end;
    if (end + 1 < text_.size() && text_[end] == '.' && is_ascii_digit(text_[end + 1])) {
      end = skip_digits(end + 1);
    }
    if (end < text_.size() && (is_name_start(text_[end]))) {
      fail(concat("unexpected '", printable(text_.substr(end, 1)), "' behind a number"),
           "Numbers are written as 12 or 1.5.");
    }
    const std::string_view digits = text_.substr(at_, end - at_);
    add(end > whole ? Type::real : Type::integer, std::string(digits));
    Token& token = tokens_.back();
    const auto result = end > whole ? std::from_chars(digits.data(), digits.data() + digits.size(), token.real)
                                    : std::from_chars(digits.data(), digits.data() + digits.size(), token.integer);
    if (result.ec != std::errc()) {
      fail(concat("the number ", digits.substr(0, 40), " does not fit into 64 bits"));
    }
    move_to(end);
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
      return read_code(at + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, content);
    }
    if (c == 'N' || is_ascii_digit(c) || static_cast<unsigned char>(c) >= 0x80) {
      fail(concat("the escape \\", printable(text_.substr(at, 1)), " in a string is not supported"),
           "Write the character itself, or \\u and its number.");
    }
    content += '\\'; // Python keeps what is no escape
    return at;
  }

  size_t read_code(size_t at, size_t size, std::string& content) {
    uint32_t code = 0;
    const std::string_view digits = text_.substr(at, size);
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), code, /*base=*/16);
    if (digits.size() < size || result.ptr != digits.data() + size) {
      fail("an escape in a string is cut short", concat("It needs ", size, " hexadecimal digits."));
    }
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
      fail("an escape in a string is not a character", "Surrogates are not supported: write \\U and the number.");
    }
    tokenizer::append_utf8(content, code);
    return at + size;
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
