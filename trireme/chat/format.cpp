#include <trireme/chat/format.h>

#include <trireme/base/error.h>
#include <trireme/chat/characters.h>
#include <trireme/chat/show.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

namespace trireme::chat {
namespace {

// What stands between % or : and the letter of a format.
struct Spec {
  std::string fill = " ";
  char align = 0; // < > ^ =; 0: the type's
  bool plus = false;
  bool space = false;
  bool alternate = false;
  bool zero = false;
  char grouping = 0; // , or _
  size_t width = 0;
  std::optional<size_t> precision;
  char type = 0;
};

constexpr size_t kMostPrecision = 400;

size_t read_number(std::string_view text, size_t& at) {
  size_t number = 0;
  const auto result = std::from_chars(text.data() + at, text.data() + text.size(), number);
  if (result.ec == std::errc::result_out_of_range) {
    throw TemplateError("a width in a format is too large");
  }
  at = static_cast<size_t>(result.ptr - text.data());
  return number;
}

bool is_digit_at(std::string_view text, size_t at) {
  return at < text.size() && text[at] >= '0' && text[at] <= '9';
}

std::string pad(const std::string& sign, std::string body, const Spec& spec, char align, Budget& budget) {
  const size_t used = length(sign) + length(body);
  if (used >= spec.width) {
    return sign + body;
  }
  const size_t missing = spec.width - used;
  budget.spend_text(missing, spec.fill.size());
  const auto filled = [&](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) {
      text += spec.fill;
    }
    return text;
  };
  switch (align) {
    case '<':
      return sign + body + filled(missing);
    case '^':
      return filled(missing / 2) + sign + body + filled(missing - missing / 2);
    case '=':
      return sign + filled(missing) + body;
    default:
      return filled(missing) + sign + body;
  }
}

std::string group(std::string digits, char separator) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t at = whole; at > 3;) {
    at -= 3;
    digits.insert(at, 1, separator);
  }
  return digits;
}

std::string sign_of(bool is_negative, const Spec& spec) {
  return is_negative ? "-" : spec.plus ? "+" : spec.space ? " " : "";
}

std::string format_integer(int64_t value, const Spec& spec, Budget& budget) {
  const uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const int base = spec.type == 'x' || spec.type == 'X' ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
  char text[72];
  const auto result = std::to_chars(text, text + sizeof text, size, base);
  std::string digits(text, result.ptr);
  if (spec.precision && digits.size() < *spec.precision) {
    digits.insert(0, std::min(*spec.precision, kMostPrecision) - digits.size(), '0');
  }
  if (spec.type == 'X') {
    digits = upper(digits);
  }
  if (spec.grouping != 0) {
    digits = group(digits, spec.grouping);
  }
  std::string sign = sign_of(value < 0, spec);
  if (spec.alternate && base != 10) {
    sign += '0';
    sign += spec.type;
  }
  return pad(sign, digits, spec, spec.align, budget);
}

std::string format_real(double value, const Spec& spec, Budget& budget) {
  const bool is_percent = spec.type == '%';
  const double shown = std::abs(is_percent ? value * 100 : value);
  std::string digits;
  if (std::isnan(shown) || std::isinf(shown)) {
    digits = std::isnan(shown) ? "nan" : "inf";
    digits = spec.type == 'E' || spec.type == 'F' || spec.type == 'G' ? upper(digits) : digits;
  } else if (spec.type == 0 && !spec.precision) {
    digits = show_real(shown);
  } else {
    const char type = is_percent ? 'f' : spec.type == 0 ? 'g' : spec.type;
    const char pattern[] = {'%',
                            spec.alternate ? '#' : '.',
                            spec.alternate ? '.' : '*',
                            spec.alternate ? '*' : type,
                            spec.alternate ? type : '\0',
                            '\0'};
    char text[800];
    constexpr size_t kDefault = 6;
    std::snprintf(text, sizeof text, pattern,
                  static_cast<int>(std::min(spec.precision.value_or(kDefault), kMostPrecision)), shown);
    digits = text;
    if (spec.type == 0 && digits.find_first_of(".en") == std::string::npos) {
      digits += ".0";
    }
  }
  if (spec.grouping != 0) {
    digits = group(digits, spec.grouping);
  }
  return pad(sign_of(std::signbit(value) && !std::isnan(value), spec), digits + (is_percent ? "%" : ""), spec,
             spec.align, budget);
}

std::string format_text(const std::string& value, const Spec& spec, char align, Budget& budget) {
  const std::string_view cut =
      spec.precision ? std::string_view(value).substr(0, byte_of(value, *spec.precision)) : value;
  return pad("", std::string(cut), spec, align, budget);
}

bool is_one_of(char type, std::string_view types) {
  return type != 0 && types.find(type) != std::string_view::npos;
}

class Printf {
 public:
  Printf(std::string_view format, const Value& values, Budget& budget)
      : format_(format), values_(values), budget_(budget) {
    is_tuple_ = values.is_sequence() && values.sequence().type == Sequence::Type::tuple;
  }

  std::string run() {
    std::string out;
    while (at_ < format_.size()) {
      const size_t next = std::min(format_.find('%', at_), format_.size());
      out += format_.substr(at_, next - at_);
      at_ = next;
      if (at_ < format_.size()) {
        ++at_;
        out += field();
        budget_.spend_text(out.size());
      }
    }
    if (!may_be_left() && used_ < (is_tuple_ ? values_.sequence().elements.size() : 1)) {
      throw TemplateError("not all arguments converted during string formatting");
    }
    return out;
  }

 private:
  // What has items is taken for a dict, which need not be used.
  bool may_be_left() const {
    const bool has_items = values_.is_sequence() && values_.sequence().type <= Sequence::Type::range;
    return values_.is_mapping() || values_.is_undefined() || (has_items && !is_tuple_);
  }

  const Value& next_value() {
    if (is_tuple_ ? used_ >= values_.sequence().elements.size() : used_ > 0) {
      throw TemplateError("not enough arguments for format string");
    }
    return is_tuple_ ? values_.sequence().elements[used_++] : (++used_, values_);
  }

  // * or a number.
  size_t read_size(Spec* spec) {
    if (at_ < format_.size() && format_[at_] == '*') {
      ++at_;
      const Value& value = next_value();
      if (!value.is(Value::Kind::integer)) {
        throw TemplateError("* wants an integer");
      }
      if (value.integer() < 0 && spec != nullptr) {
        spec->align = '<';
      }
      return static_cast<size_t>(value.integer() < 0 && spec == nullptr ? 0 : std::abs(value.integer()));
    }
    return is_digit_at(format_, at_) ? read_number(format_, at_) : 0;
  }

  std::string field() {
    const Value* value = nullptr;
    if (at_ < format_.size() && format_[at_] == '(') {
      const size_t end = format_.find(')', at_);
      if (end == std::string_view::npos || !values_.is_mapping()) {
        throw TemplateError("format requires a mapping");
      }
      value = values_.mapping().find(format_.substr(at_ + 1, end - at_ - 1));
      if (value == nullptr) {
        throw TemplateError(concat("the format names ", format_.substr(at_ + 1, end - at_ - 1), ", which is missing"));
      }
      at_ = end + 1;
    }
    Spec spec;
    for (; at_ < format_.size() && is_one_of(format_[at_], "-+ #0"); ++at_) {
      const char flag = format_[at_];
      spec.plus |= flag == '+';
      spec.space |= flag == ' ';
      spec.alternate |= flag == '#';
      spec.zero |= flag == '0';
      spec.align = flag == '-' ? '<' : spec.align;
    }
    spec.width = read_size(&spec);
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      spec.precision = read_size(nullptr);
    }
    if (at_ < format_.size() && is_one_of(format_[at_], "hlL")) {
      ++at_;
    }
    if (at_ == format_.size()) {
      throw TemplateError("incomplete format");
    }
    spec.type = format_[at_++];
    if (spec.type == '%') {
      return "%";
    }
    return convert(value != nullptr ? *value : next_value(), spec);
  }

  std::string convert(const Value& value, Spec spec) {
    const char align = spec.align != 0 ? spec.align : '>';
    if (is_one_of(spec.type, "sra")) {
      return format_text(spec.type == 's' ? to_text(value, budget_) : repr(value, budget_), spec, align, budget_);
    }
    if (spec.type == 'c') {
      if (value.is_text() && length(value.text()) == 1) {
        return format_text(value.text(), spec, align, budget_);
      }
      throw TemplateError("%c requires one character");
    }
    if (spec.zero && align != '<') {
      spec.fill = "0";
      spec.align = '=';
    } else {
      spec.align = align;
    }
    const auto number = number_of(value);
    const bool is_integer = is_one_of(spec.type, "diuxXo");
    if (!is_integer && !is_one_of(spec.type, "eEfFgG")) {
      throw TemplateError(concat("unsupported format character '", spec.type, '\''));
    }
    if (!number || (number->is_real && is_one_of(spec.type, "xXo"))) {
      value.require_defined();
      throw TemplateError(concat('%', spec.type, " requires a number, not ", type_name(value)));
    }
    if (!is_integer) {
      return format_real(number->real, spec, budget_);
    }
    if (number->is_real && !(std::abs(number->real) < 9e18)) {
      throw TemplateError("a number does not fit into 64 bits");
    }
    return format_integer(number->is_real ? static_cast<int64_t>(number->real) : number->integer, spec, budget_);
  }

  std::string_view format_;
  const Value& values_;
  Budget& budget_;
  size_t at_ = 0;
  size_t used_ = 0;
  bool is_tuple_ = false;
};

Spec read_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    const size_t first = tokenizer::char_at(text, 0).bytes;
    if (first < text.size() && is_align(text[first])) {
      spec.fill = text.substr(0, first);
      spec.align = text[first];
      at = first + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  const auto take = [&](char c) { return at < text.size() && text[at] == c ? (++at, true) : false; };
  spec.plus = take('+');
  spec.space = !spec.plus && take(' ');
  if (!spec.plus && !spec.space) {
    take('-');
  }
  spec.alternate = take('#');
  if (take('0') && spec.align == 0) {
    spec.zero = true;
    spec.fill = "0";
  }
  if (is_digit_at(text, at)) {
    spec.width = read_number(text, at);
  }
  spec.grouping = take(',') ? ',' : take('_') ? '_' : '\0';
  if (take('.')) {
    if (!is_digit_at(text, at)) {
      throw TemplateError("Format specifier missing precision");
    }
    spec.precision = read_number(text, at);
  }
  if (at < text.size()) {
    spec.type = text[at++];
  }
  if (at != text.size()) {
    throw TemplateError(concat("Invalid format specifier '", text, '\''));
  }
  return spec;
}

std::string format_value(const Value& value, std::string_view text, Budget& budget) {
  if (text.empty()) {
    return to_text(value, budget);
  }
  Spec spec = read_spec(text);
  const auto number = number_of(value);
  const bool is_plain_boolean = value.is(Value::Kind::boolean) && spec.type == 0;
  if (number && is_one_of(spec.type, "eEfFgG%")) {
    spec.align = spec.align != 0 ? spec.align : spec.zero ? '=' : '>';
    return format_real(number->real, spec, budget);
  }
  if (number && number->is_real && spec.type == 0) {
    spec.align = spec.align != 0 ? spec.align : spec.zero ? '=' : '>';
    return format_real(number->real, spec, budget);
  }
  if (number && !number->is_real && (is_plain_boolean || spec.type == 0 || is_one_of(spec.type, "dxXob")) &&
      !spec.precision) {
    spec.align = spec.align != 0 ? spec.align : spec.zero ? '=' : '>';
    return format_integer(number->integer, spec, budget);
  }
  if (value.is_text() && (spec.type == 0 || spec.type == 's') && spec.align != '=' && spec.grouping == 0 &&
      !spec.plus && !spec.space) {
    return format_text(value.text(), spec, spec.align != 0 ? spec.align : '<', budget);
  }
  throw TemplateError(concat("the format '", text, "' does not fit a value of type ", type_name(value)));
}

class BraceFormat {
 public:
  BraceFormat(std::string_view format, const Arguments& arguments, const LookUp& look_up, Budget& budget)
      : format_(format), arguments_(arguments), look_up_(look_up), budget_(budget) {}

  std::string run() {
    std::string out;
    for (size_t at = 0; at < format_.size();) {
      const char c = format_[at];
      const bool is_doubled = at + 1 < format_.size() && format_[at + 1] == c;
      if ((c == '{' || c == '}') && is_doubled) {
        out += c;
        at += 2;
      } else if (c == '}') {
        throw TemplateError("Single '}' encountered in format string");
      } else if (c == '{') {
        const size_t end = format_.find_first_of("{}", at + 1);
        if (end == std::string_view::npos) {
          throw TemplateError("expected '}' before end of string");
        }
        if (format_[end] == '{') {
          throw TemplateError("fields inside of a field of str.format() are not supported");
        }
        out += field(format_.substr(at + 1, end - at - 1));
        budget_.spend_text(out.size());
        at = end + 1;
      } else {
        out += c;
        ++at;
      }
    }
    return out;
  }

 private:
  std::string field(std::string_view text) {
    const size_t colon = std::min(text.find(':'), text.size());
    std::string_view spec = text.substr(std::min(colon + 1, text.size()));
    std::string_view name = text.substr(0, colon);
    char conversion = 0;
    if (const size_t mark = name.find('!'); mark != std::string_view::npos) {
      if (mark + 2 != name.size() || !is_one_of(name[mark + 1], "sr")) {
        throw TemplateError("a conversion in str.format() must be !s or !r");
      }
      conversion = name[mark + 1];
      name = name.substr(0, mark);
    }
    Value value = find(name);
    if (conversion != 0) {
      value = conversion == 'r' ? repr(value, budget_) : to_text(value, budget_);
    }
    return format_value(value, spec, budget_);
  }

  Value find(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first(name.substr(0, end));
    for (size_t at = end; at < name.size();) {
      const bool is_attribute = name[at] == '.';
      const size_t stop = is_attribute ? std::min(name.find_first_of(".[", at + 1), name.size()) : name.find(']', at);
      if (stop == std::string_view::npos || stop == at + 1 || (!is_attribute && name[at] != '[')) {
        throw TemplateError(concat("the field '", name, "' of str.format() is malformed"));
      }
      value = look_up_(value, std::string(name.substr(at + 1, stop - at - 1)), is_attribute);
      at = is_attribute ? stop : stop + 1;
    }
    return value;
  }

  Value first(std::string_view name) {
    if (name.empty() || is_digit_at(name, 0)) {
      size_t at = 0;
      const size_t index = name.empty() ? next_++ : read_number(name, at);
      if (index >= arguments_.positional.size()) {
        throw TemplateError(concat("Replacement index ", index, " out of range for positional args tuple"));
      }
      return arguments_.positional[index];
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) {
        return value;
      }
    }
    throw TemplateError(concat("str.format() has no argument '", name, '\''));
  }

  std::string_view format_;
  const Arguments& arguments_;
  const LookUp& look_up_;
  Budget& budget_;
  size_t next_ = 0;
};

} // namespace

std::string printf_format(std::string_view format, const Value& values, Budget& budget) {
  return Printf(format, values, budget).run();
}

std::string brace_format(std::string_view format, const Arguments& arguments, const LookUp& look_up, Budget& budget) {
  return BraceFormat(format, arguments, look_up, budget).run();
}

} // namespace trireme::chat
