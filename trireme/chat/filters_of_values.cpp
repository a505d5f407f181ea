#include <trireme/base/error.h>
#include <trireme/chat/call_arguments.h>
#include <trireme/chat/characters.h>
#include <trireme/chat/filters.h>
#include <trireme/chat/format.h>
#include <trireme/chat/members.h>
#include <trireme/chat/numbers.h>
#include <trireme/chat/operators.h>
#include <trireme/chat/show.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>
#include <cmath>

namespace trireme::chat {
namespace {

template <std::string (*kChange)(std::string_view)>
Value change_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "the filter", {});
  const std::string text = to_text(input, budget);
  budget.spend_text(text.size());
  return kChange(text);
}

Value absolute(const Value& input, const Arguments& given, Budget&) {
  const CallArguments arguments(given, "abs", {});
  const auto number = number_of(input);
  if (!number) {
    input.require_defined();
    throw TemplateError(concat("bad operand type for abs(): '", type_name(input), '\''));
  }
  if (number->is_real) {
    return std::abs(number->real);
  }
  return number->integer < 0 ? negate(number->integer) : Value(number->integer);
}

Value attribute_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "attr", {"name"}, 1);
  if (input.is_mapping() && input.mapping().find(arguments.text(0)) != nullptr) {
    return Value::undefined(concat("'dict object' has no attribute '", arguments.text(0), '\''));
  }
  return get_attribute(input, arguments.text(0), budget);
}

Value center_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "center", {"width"});
  constexpr int64_t kDefaultWidth = 80;
  const Value text = to_text(input, budget);
  const Value method = *find_text_method(text, "center", budget);
  return method.callable().call({.positional = {arguments.integer(0, kDefaultWidth)}, .named = {}});
}

Value default_filter(const Value& input, const Arguments& given, Budget&) {
  const CallArguments arguments(given, "default", {"default_value", "boolean"});
  const bool is_missing = input.is_undefined() || (arguments.flag(1, false) && !is_true(input));
  return !is_missing ? input : arguments.find(0) != nullptr ? arguments.get(0) : Value("");
}

Value escape(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "escape", {});
  std::string text = to_text(input, budget);
  constexpr std::pair<const char*, const char*> kEscapes[] = {
      {"&", "&amp;"}, {">", "&gt;"}, {"<", "&lt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
  for (const auto& [from, to] : kEscapes) {
    text = replace(text, from, to, -1, budget);
  }
  return text;
}

Value format_filter(const Value& input, const Arguments& given, Budget& budget) {
  if (!given.positional.empty() && !given.named.empty()) {
    throw TemplateError("format takes either positional or named arguments");
  }
  if (given.named.empty()) {
    return printf_format(to_text(input, budget), make_sequence(Sequence::Type::tuple, given.positional, budget),
                         budget);
  }
  Mapping named;
  for (const auto& [name, value] : given.named) {
    named.set(name, value, budget);
  }
  return printf_format(to_text(input, budget), make_mapping(std::move(named)), budget);
}

Value indent(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "indent", {"width", "first", "blank"});
  if (!input.is_text()) {
    input.require_defined();
    throw TemplateError(concat("indent needs a text, not ", type_name(input)));
  }
  constexpr int64_t kDefaultWidth = 4;
  std::string indention;
  if (arguments.find(0) != nullptr && arguments.get(0).is_text()) {
    indention = arguments.text(0);
  } else {
    const auto width = static_cast<size_t>(std::max<int64_t>(arguments.integer(0, kDefaultWidth), 0));
    budget.spend_text(width);
    indention.assign(width, ' ');
  }
  const std::string text = input.text() + "\n"; // as Jinja, so that an empty text has a line
  const bool blank = arguments.flag(2, false);
  std::string out = arguments.flag(1, false) ? indention : "";
  bool is_first = true;
  for (const std::string_view line : split_lines(text)) {
    if (!std::exchange(is_first, false)) {
      budget.append(out, "\n");
      budget.append(out, blank || !line.empty() ? indention : "");
    }
    budget.append(out, line);
  }
  return out;
}

Value integer_filter(const Value& input, const Arguments& given, Budget&) {
  const CallArguments arguments(given, "int", {"default", "base"});
  const Value instead = arguments.find(0) != nullptr ? arguments.get(0) : Value(int64_t{0});
  constexpr int64_t kDecimal = 10;
  if (input.is_text()) {
    if (const auto number = parse_integer(input.text(), arguments.integer(1, kDecimal))) {
      return *number;
    }
    const auto real = parse_real(input.text());
    return real && std::isfinite(*real) ? Value(truncate(*real)) : instead;
  }
  input.require_defined();
  const auto number = number_of(input);
  if (!number || std::isnan(number->real)) {
    return instead;
  }
  return number->is_real ? truncate(number->real) : number->integer;
}

Value real_filter(const Value& input, const Arguments& given, Budget&) {
  const CallArguments arguments(given, "float", {"default"});
  const Value instead = arguments.find(0) != nullptr ? arguments.get(0) : Value(0.0);
  if (input.is_text()) {
    const auto real = parse_real(input.text());
    return real ? Value(*real) : instead;
  }
  input.require_defined();
  const auto number = number_of(input);
  return number ? Value(number->real) : instead;
}

Value replace_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "replace", {"old", "new", "count"}, 2);
  const int64_t most = arguments.find_unless_none(2) == nullptr ? -1 : arguments.integer(2, -1);
  return replace(to_text(input, budget), to_text(arguments.get(0), budget), to_text(arguments.get(1), budget), most,
                 budget);
}

Value round_filter(const Value& input, const Arguments& given, Budget&) {
  const CallArguments arguments(given, "round", {"precision", "method"});
  const std::string method = arguments.find(1) == nullptr ? "common" : arguments.text(1);
  if (method != "common" && method != "ceil" && method != "floor") {
    throw TemplateError("the method of round must be common, ceil or floor");
  }
  const auto number = number_of(input);
  if (!number) {
    input.require_defined();
    throw TemplateError(concat("round needs a number, not ", type_name(input)));
  }
  const int64_t precision = arguments.integer(0, 0);
  if (method == "common") {
    return number->is_real ? Value(round_real(number->real, precision))
                           : Value(round_integer(number->integer, precision));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = number->real * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value string_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "string", {});
  return input.is_text() ? input : Value(to_text(input, budget));
}

// Jinja's, which is not Python's title(): words begin behind spaces, hyphens and opening brackets.
Value title_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "title", {});
  const std::string text = to_text(input, budget);
  budget.spend_text(text.size());
  const auto separates = [](char32_t code) {
    return is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
  };
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    const bool is_separator = separates(tokenizer::char_at(text, at).code);
    while (end < text.size() && separates(tokenizer::char_at(text, end).code) == is_separator) {
      end += tokenizer::char_at(text, end).bytes;
    }
    const size_t first = tokenizer::char_at(text, at).bytes;
    out += upper(text.substr(at, first));
    out += lower(text.substr(at + first, end - at - first));
    at = end;
  }
  return out;
}

Value to_json_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = arguments.flag(0, false);
  style.sort_keys = arguments.flag(3, false);
  if (const Value* const width = arguments.find_unless_none(1)) {
    constexpr int64_t kMostIndent = 1000;
    style.indent =
        width->is_text()
            ? width->text()
            : std::string(static_cast<size_t>(std::clamp<int64_t>(arguments.integer(1, 0), 0, kMostIndent)), ' ');
  }
  if (const Value* const separators = arguments.find_unless_none(2)) {
    const Values both = elements_of(*separators, budget);
    if (both.size() != 2 || !both[0].is_text() || !both[1].is_text()) {
      throw TemplateError("separators of tojson must be two texts");
    }
    style.between = both[0].text();
    style.after_key = both[1].text();
  }
  return to_json(input, style, budget);
}

Value trim_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "trim", {"chars"});
  const bool has_chars = arguments.find_unless_none(0) != nullptr;
  const std::string text = to_text(input, budget);
  budget.spend_text(text.size());
  return strip(text, Side::both, has_chars ? std::optional<std::string_view>(arguments.text(0)) : std::nullopt);
}

} // namespace

std::vector<NamedFilter> value_filters() {
  return {{"abs", absolute},
          {"attr", attribute_filter},
          {"capitalize", change_filter<capitalize>},
          {"center", center_filter},
          {"d", default_filter},
          {"default", default_filter},
          {"e", escape},
          {"escape", escape},
          {"float", real_filter},
          {"forceescape", escape},
          {"format", format_filter},
          {"indent", indent},
          {"int", integer_filter},
          {"lower", change_filter<lower>},
          {"replace", replace_filter},
          {"round", round_filter},
          {"safe", string_filter},
          {"string", string_filter},
          {"title", title_filter},
          {"tojson", to_json_filter},
          {"trim", trim_filter},
          {"upper", change_filter<upper>}};
}

} // namespace trireme::chat
