#include <trireme/chat/show.h>

#include <trireme/base/error.h>
#include <trireme/tokenizer/unicode.h>

#include <utf8proc.h>

#include <charconv>
#include <cmath>
#include <cstdio>

namespace trireme::chat {
namespace {

using Kind = Value::Kind;

// Namespaces can lie inside of each other, and of themselves.
constexpr int kMostLevels = 2 * kMostNesting;

std::string hex(const char* format, char32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, format, static_cast<unsigned>(code));
  return text;
}

bool is_printable(char32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return code == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
}

// The fewest digits that read back as the same number.
std::string show_real(double value) {
  if (!std::isfinite(value)) {
    throw TemplateError("a number is not finite");
  }
  const double size = std::abs(value);
  const bool is_plain = size == 0 || (size >= 1e-4 && size < 1e16);
  char text[40];
  const auto result = std::to_chars(text, text + sizeof text, value,
                                    is_plain ? std::chars_format::fixed : std::chars_format::scientific);
  const std::string shown(text, result.ptr);
  return is_plain && shown.find('.') == std::string::npos ? shown + ".0" : shown;
}

// Python's choice.
char quote_of(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  return has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
}

std::string escape(std::string_view text, char quote) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto [code, bytes] = tokenizer::char_at(text, at);
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_printable(code)) {
      out += text.substr(at, bytes);
    } else {
      out += hex(code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
    }
    at += bytes;
  }
  return out;
}

std::string escape_json(std::string_view text) {
  constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
  constexpr std::string_view kLetters = "\"\\nrtfb";
  std::string out;
  for (const char byte : text) {
    if (const size_t found = kEscaped.find(byte); found != std::string_view::npos) {
      out += '\\';
      out += kLetters[found];
    } else if (static_cast<unsigned char>(byte) < 0x20) {
      out += hex("\\u%04x", static_cast<unsigned char>(byte));
    } else {
      out += byte;
    }
  }
  return out;
}

// As Python's repr(), or with `json` as json.dumps().
class Printer {
 public:
  Printer(const JsonStyle* json, Budget& budget)
      : json_(json),
        budget_(budget),
        between_(json == nullptr ? ", " : json->between.value_or(json->indent ? "," : ", ")) {}

  void print(const Value& value, int level) {
    if (level > kMostLevels) {
      throw TemplateError("a value is nested too deeply to be printed");
    }
    budget_.spend();
    if (value.is_mapping()) {
      print(value.mapping(), level);
    } else if (value.is_sequence() && value.sequence().type != Sequence::Type::iterator) {
      print(value.sequence(), level);
    } else if (value.is_text()) {
      print(std::string_view(value.text()));
    } else if (value.is(Kind::name_space) && json_ == nullptr) {
      add("<Namespace ");
      print(value.name_space().attributes, level);
      add(">");
    } else {
      add(shown(value));
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void add(std::string_view text) { budget_.append(out_, text); }

  // In pieces, since an escaped text can be ten times as long.
  void print(std::string_view text) {
    constexpr size_t kPiece = 4096;
    const char quote = json_ != nullptr ? '"' : quote_of(text);
    add({&quote, 1});
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.size() - at > kPiece ? tokenizer::char_before(text, at + kPiece) : text.size();
      const std::string_view piece = text.substr(at, end - at);
      add(json_ != nullptr ? escape_json(piece) : escape(piece, quote));
      at = end;
    }
    add({&quote, 1});
  }

  // What is no text and holds nothing else.
  std::string shown(const Value& value) const {
    switch (value.kind()) {
      case Kind::none:
        return json_ != nullptr ? "null" : "None";
      case Kind::boolean:
        return json_ != nullptr ? (value.boolean() ? "true" : "false") : (value.boolean() ? "True" : "False");
      case Kind::integer:
        return std::to_string(value.integer());
      case Kind::real:
        return show_real(value.real());
      default:
        break;
    }
    if (json_ != nullptr) {
      throw TemplateError(concat("object of type ", type_name(value), " cannot be written as JSON"));
    }
    return value.is_undefined() ? "Undefined" : concat('<', type_name(value), '>');
  }

  void new_line(int level) {
    if (json_ != nullptr && json_->indent) {
      const size_t spaces = *json_->indent * static_cast<size_t>(level);
      budget_.spend_text(spaces);
      add("\n" + std::string(spaces, ' '));
    }
  }

  void print(const Sequence& sequence, int level) {
    const bool is_tuple = sequence.type == Sequence::Type::tuple && json_ == nullptr;
    add(is_tuple ? "(" : "[");
    for (size_t i = 0; i < sequence.elements.size(); ++i) {
      add(i > 0 ? between_ : "");
      new_line(level + 1);
      print(sequence.elements[i], level + 1);
    }
    if (!sequence.elements.empty()) {
      new_line(level);
    }
    add(is_tuple && sequence.elements.size() == 1 ? ",)" : is_tuple ? ")" : "]");
  }

  void print(const Mapping& mapping, int level) {
    add("{");
    bool first = true;
    for (const auto& [key, value] : mapping.items()) {
      add(std::exchange(first, false) ? "" : between_);
      new_line(level + 1);
      if (key.is_text()) {
        print(std::string_view(key.text()));
      } else {
        add(json_ != nullptr ? concat('"', shown(key), '"') : shown(key));
      }
      add(json_ != nullptr ? json_->after_key : ": ");
      print(value, level + 1);
    }
    if (!first) {
      new_line(level);
    }
    add("}");
  }

  const JsonStyle* json_;
  Budget& budget_;
  std::string between_;
  std::string out_;
};

} // namespace

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_text()) {
    budget.spend_pass(value.text().size());
    return value.text();
  }
  return value.is_undefined() ? "" : repr(value, budget);
}

std::string repr(const Value& value, Budget& budget) {
  Printer printer(nullptr, budget);
  printer.print(value, 0);
  return printer.take();
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  Printer printer(&style, budget);
  printer.print(value, 0);
  return printer.take();
}

} // namespace trireme::chat
