#include <trireme/chat/show.h>

#include <trireme/base/error.h>
#include <trireme/chat/operators.h>
#include <trireme/tokenizer/unicode.h>

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace trireme::chat {
namespace {

using Kind = Value::Kind;

// Namespaces can lie inside of each other, and of themselves.
constexpr int kMostLevels = 2 * kMostNesting;

void check_level(int level) {
  if (level > kMostLevels) {
    throw TemplateError("a value is nested too deeply to be printed");
  }
}

std::string hex(const char* format, char32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, format, static_cast<unsigned>(code));
  return text;
}

bool is_printable(char32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return code == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
}

std::string repr_of_text(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
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
  return out + quote;
}

class Printer {
 public:
  explicit Printer(Budget& budget) : budget_(budget) {}

  void print(const Value& value, int level) {
    check_level(level);
    budget_.spend();
    switch (value.kind()) {
      case Kind::undefined:
        add("Undefined");
        break;
      case Kind::none:
        add("None");
        break;
      case Kind::boolean:
        add(value.boolean() ? "True" : "False");
        break;
      case Kind::integer:
        add(std::to_string(value.integer()));
        break;
      case Kind::real:
        add(show_real(value.real()));
        break;
      case Kind::text:
        add(repr_of_text(value.text()));
        break;
      case Kind::sequence:
        print(value.sequence(), level);
        break;
      case Kind::mapping:
        print(value.mapping(), level);
        break;
      case Kind::name_space:
        add("<Namespace ");
        print(value.name_space().attributes, level);
        add(">");
        break;
      case Kind::loop:
        add(concat("<LoopContext ", value.loop()->index + 1, '/', value.loop()->elements.size(), '>'));
        break;
      case Kind::callable:
        add(concat("<function ", value.callable().name, '>'));
        break;
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void add(std::string_view text) { budget_.append(out_, text); }

  void print(const Sequence& sequence, int level) {
    using Type = Sequence::Type;
    constexpr const char* kBegin[] = {"[", "(", "", "dict_keys([", "dict_values([", "dict_items([", ""};
    constexpr const char* kEnd[] = {"]", ")", "", "])", "])", "])", ""};
    if (sequence.type == Type::range || sequence.type == Type::iterator) {
      add(sequence.type == Type::range ? sequence.shown : "<iterator>");
      return;
    }
    add(kBegin[static_cast<size_t>(sequence.type)]);
    for (size_t i = 0; i < sequence.elements.size(); ++i) {
      add(i > 0 ? ", " : "");
      print(sequence.elements[i], level + 1);
    }
    add(sequence.type == Type::tuple && sequence.elements.size() == 1 ? "," : "");
    add(kEnd[static_cast<size_t>(sequence.type)]);
  }

  void print(const Mapping& mapping, int level) {
    add("{");
    bool first = true;
    for (const auto& [key, value] : mapping.items()) {
      add(first ? "" : ", ");
      first = false;
      print(key, level + 1);
      add(": ");
      print(value, level + 1);
    }
    add("}");
  }

  Budget& budget_;
  std::string out_;
};

class JsonPrinter {
 public:
  JsonPrinter(const JsonStyle& style, Budget& budget)
      : style_(style), budget_(budget), between_(style.between.value_or(style.indent ? "," : ", ")) {}

  void print(const Value& value, int level) {
    check_level(level);
    budget_.spend();
    switch (value.kind()) {
      case Kind::none:
        add("null");
        break;
      case Kind::boolean:
        add(value.boolean() ? "true" : "false");
        break;
      case Kind::integer:
        add(std::to_string(value.integer()));
        break;
      case Kind::real:
        add(real(value.real()));
        break;
      case Kind::text:
        add_text(value.text());
        break;
      case Kind::mapping:
        print(value.mapping(), level);
        break;
      case Kind::sequence:
        if (value.sequence().type <= Sequence::Type::tuple) {
          print(value.sequence().elements, level);
          break;
        }
        [[fallthrough]];
      default:
        throw TemplateError(concat("object of type ", type_name(value), " cannot be written as JSON"));
    }
  }

  std::string take() { return std::move(out_); }

 private:
  static std::string real(double value) {
    return std::isnan(value) ? "NaN" : std::isinf(value) ? (value < 0 ? "-Infinity" : "Infinity") : show_real(value);
  }

  void add(std::string_view text) { budget_.append(out_, text); }

  void add_text(std::string_view text) {
    std::string out = "\"";
    for (size_t at = 0; at < text.size();) {
      const auto [code, bytes] = tokenizer::char_at(text, at);
      constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
      constexpr std::string_view kLetters = "\"\\nrtfb";
      const size_t found = code < 0x80 ? kEscaped.find(static_cast<char>(code)) : std::string_view::npos;
      if (found != std::string_view::npos) {
        out += '\\';
        out += kLetters[found];
      } else if (code < 0x20 || (style_.ensure_ascii && code >= 0x7f && code < 0x10000)) {
        out += hex("\\u%04x", code);
      } else if (style_.ensure_ascii && code >= 0x10000) {
        out += hex("\\u%04x", 0xd800 + ((code - 0x10000) >> 10));
        out += hex("\\u%04x", 0xdc00 + ((code - 0x10000) & 0x3ff));
      } else {
        out += text.substr(at, bytes);
      }
      at += bytes;
    }
    add(out + '"');
  }

  void new_line(int level) {
    if (style_.indent) {
      add("\n");
      for (int i = 0; i < level; ++i) {
        add(*style_.indent);
      }
    }
  }

  void print(const Values& elements, int level) {
    if (elements.empty()) {
      add("[]");
      return;
    }
    add("[");
    for (size_t i = 0; i < elements.size(); ++i) {
      add(i > 0 ? between_ : "");
      new_line(level + 1);
      print(elements[i], level + 1);
    }
    new_line(level);
    add("]");
  }

  void print(const Mapping& mapping, int level) {
    if (mapping.size() == 0) {
      add("{}");
      return;
    }
    auto items = mapping.items();
    budget_.spend(items.size());
    if (style_.sort_keys) {
      std::ranges::stable_sort(items, [&](const auto& a, const auto& b) { return is_less(a.first, b.first, budget_); });
    }
    add("{");
    for (size_t i = 0; i < items.size(); ++i) {
      add(i > 0 ? between_ : "");
      new_line(level + 1);
      add_text(key(items[i].first));
      add(style_.after_key);
      print(items[i].second, level + 1);
    }
    new_line(level);
    add("}");
  }

  std::string key(const Value& key) {
    switch (key.kind()) {
      case Kind::text:
        return key.text();
      case Kind::none:
        return "null";
      case Kind::boolean:
        return key.boolean() ? "true" : "false";
      case Kind::integer:
        return std::to_string(key.integer());
      case Kind::real:
        return real(key.real());
      default:
        throw TemplateError(concat("keys of JSON must be text, numbers or none, not ", type_name(key)));
    }
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string between_;
  std::string out_;
};

} // namespace

std::string show_real(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value < 0 ? "-inf" : "inf";
  }
  char text[40];
  const auto result = std::to_chars(text, text + sizeof text, std::abs(value), std::chars_format::scientific);
  const std::string_view all(text, static_cast<size_t>(result.ptr - text)); // d.ddde+XX
  const size_t mark = all.find('e');
  const int exponent = std::atoi(std::string(all.substr(mark + 1)).c_str());
  std::string digits(all.substr(0, mark));
  std::erase(digits, '.');
  std::string out = std::signbit(value) ? "-" : "";
  constexpr int kMostPlain = 16;
  if (exponent < -4 || exponent >= kMostPlain) {
    out += digits.substr(0, 1);
    out += digits.size() > 1 ? "." + digits.substr(1) : "";
    char tail[16];
    std::snprintf(tail, sizeof tail, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out + tail;
  }
  if (exponent < 0) {
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    return out + digits + std::string(whole - digits.size(), '0') + ".0";
  }
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_text()) {
    return value.text();
  }
  return value.is_undefined() ? "" : repr(value, budget);
}

std::string repr(const Value& value, Budget& budget) {
  Printer printer(budget);
  printer.print(value, 0);
  return printer.take();
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonPrinter printer(style, budget);
  printer.print(value, 0);
  return printer.take();
}

} // namespace trireme::chat
