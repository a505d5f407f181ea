#include <trireme/base/error.h>
#include <trireme/chat/call_arguments.h>
#include <trireme/chat/characters.h>
#include <trireme/chat/filters.h>
#include <trireme/chat/members.h>
#include <trireme/chat/show.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>
#include <charconv>

namespace trireme::chat {
namespace {

template <std::string (*kChange)(std::string_view)>
Value change_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "the filter", {});
  const std::string text = to_text(input, budget);
  budget.spend_text(text.size());
  return kChange(text);
}

Value default_filter(const Value& input, const Arguments& given, Budget&) {
  const CallArguments arguments(given, "default", {"default_value", "boolean"});
  const bool is_missing = input.is_undefined() || (arguments.flag(1, false) && !is_true(input));
  return !is_missing ? input : arguments.find(0) != nullptr ? arguments.get(0) : Value("");
}

// Python's %, of %s and %% alone.
Value format_filter(const Value& input, const Arguments& given, Budget& budget) {
  const std::string format = to_text(input, budget);
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < format.size();) {
    const size_t sign = format.find('%', at);
    budget.append(out, std::string_view(format).substr(at, sign - at));
    if (sign == std::string::npos) {
      break;
    }
    at = sign + 2;
    const char kind = sign + 1 < format.size() ? format[sign + 1] : '\0';
    if (kind == '%') {
      budget.append(out, "%");
    } else if (kind == 's' && next < given.positional.size()) {
      budget.append(out, to_text(given.positional[next++], budget));
    } else if (kind == 's') {
      throw TemplateError("format has fewer arguments than its text has %s");
    } else {
      throw NotSupported("the filter format supports only %s and %%");
    }
  }
  if (next != given.positional.size() || !given.named.empty()) {
    throw TemplateError("format has more arguments than its text has %s");
  }
  return out;
}

Value integer_of(double value) {
  constexpr double kBeyond = 9223372036854775808.0;
  if (!(value < kBeyond && value >= -kBeyond)) {
    throw TemplateError("a number does not fit into a 64-bit integer");
  }
  return static_cast<int64_t>(value);
}

Value integer_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "int", {"default"});
  if (const auto number = number_of(input)) {
    return number->is_real ? integer_of(number->real) : Value(number->integer);
  }
  input.require_defined();
  budget.spend_pass(input.is_text() ? input.text().size() : 0);
  std::string_view digits = input.is_text() ? strip(input.text(), Side::both) : "";
  digits.remove_prefix(digits.starts_with('+') && !digits.starts_with("+-") ? 1 : 0);
  const char* const end = digits.data() + digits.size();
  int64_t integer = 0;
  if (const auto result = std::from_chars(digits.data(), end, integer); result.ptr == end && result.ec == std::errc()) {
    return integer;
  }
  double real = 0;
  if (const auto result = std::from_chars(digits.data(), end, real); result.ptr == end && result.ec == std::errc()) {
    return integer_of(real);
  }
  return arguments.find(0) != nullptr ? arguments.get(0) : Value(int64_t{0});
}

Value replace_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "replace", {"old", "new", "count"}, 2);
  const int64_t most = arguments.find_unless_none(2) == nullptr ? -1 : arguments.integer(2, -1);
  return replace(to_text(input, budget), to_text(arguments.get(0), budget), to_text(arguments.get(1), budget), most,
                 budget);
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
  const CallArguments arguments(given, "tojson", {"ensure_ascii", "indent", "separators"});
  JsonStyle style;
  if (arguments.flag(0, false)) {
    throw NotSupported("tojson does not support ensure_ascii=true");
  }
  if (arguments.find_unless_none(1) != nullptr) {
    constexpr int64_t kMostIndent = 1000;
    style.indent = static_cast<size_t>(std::clamp<int64_t>(arguments.integer(1, 0), 0, kMostIndent));
  }
  if (const Value* const separators = arguments.find_unless_none(2)) {
    const Values both = elements_of(*separators, budget);
    if (both.size() != 2 || !both[0].is_text() || !both[1].is_text()) {
      throw TemplateError("separators of tojson must be two texts");
    }
    budget.spend_pass(both[0].text().size());
    budget.spend_pass(both[1].text().size());
    style.between = both[0].text();
    style.after_key = both[1].text();
  }
  return to_json(input, style, budget);
}

Value trim_filter(const Value& input, const Arguments& given, Budget& budget) {
  return find_text_method(to_text(input, budget), "strip", budget)->callable().call(given);
}

} // namespace

Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments, Budget& budget) {
  static const Named<Filter> all = [] {
    Named<Filter> found = {{"capitalize", change_filter<capitalize>},
                           {"d", default_filter},
                           {"default", default_filter},
                           {"format", format_filter},
                           {"int", integer_filter},
                           {"lower", change_filter<lower>},
                           {"replace", replace_filter},
                           {"safe", string_filter},
                           {"string", string_filter},
                           {"title", title_filter},
                           {"tojson", to_json_filter},
                           {"trim", trim_filter},
                           {"upper", change_filter<upper>}};
    found.merge(sequence_filters());
    return found;
  }();
  return find_named(all, "filter", name)(input, arguments, budget);
}

} // namespace trireme::chat
