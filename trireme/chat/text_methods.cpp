#include <trireme/base/error.h>
#include <trireme/chat/call_arguments.h>
#include <trireme/chat/characters.h>
#include <trireme/chat/members.h>
#include <trireme/chat/named.h>

#include <algorithm>
#include <string_view>

// The methods of Python's str.
namespace trireme::chat {
namespace {

using Text = const std::string&;
using TextMethod = Value (*)(Text text, const Arguments& arguments, Budget& budget);

template <std::string (*kChange)(std::string_view)>
Value change(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "the method", {});
  budget.spend_text(text.size());
  return kChange(text);
}

template <Side kSide>
Value strip_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "strip", {"chars"});
  const bool has_chars = arguments.find_unless_none(0) != nullptr;
  budget.spend_text(text.size());
  if (!has_chars) {
    return strip(text, kSide);
  }
  budget.spend_pass(arguments.text(0).size());
  return strip(text, kSide, arguments.text(0));
}

Value split_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "split", {"sep", "maxsplit"});
  std::optional<std::string_view> separator;
  if (arguments.find_unless_none(0) != nullptr) {
    separator = arguments.text(0);
    if (separator->empty()) {
      throw TemplateError("split(): the separator is empty");
    }
  }
  budget.spend_text(text.size());
  Values parts;
  for (const std::string_view part : split_text(text, separator, arguments.integer(1, -1), budget)) {
    parts.emplace_back(part);
  }
  return make_list(std::move(parts), budget);
}

template <bool kAtEnd>
Value starts_or_ends(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, kAtEnd ? "endswith" : "startswith", {"prefix"}, 1);
  const auto fits = [&](const Value& wanted) {
    if (!wanted.is_text()) {
      wanted.require_defined();
      throw TemplateError(concat("startswith() and endswith() need a text or a tuple, not ", type_name(wanted)));
    }
    budget.spend();
    budget.spend_pass(std::min(wanted.text().size(), text.size()));
    return kAtEnd ? text.ends_with(wanted.text()) : text.starts_with(wanted.text());
  };
  const Value& wanted = arguments.get(0);
  if (wanted.is_sequence() && wanted.sequence().type == Sequence::Type::tuple) {
    return std::ranges::any_of(wanted.sequence().elements, fits);
  }
  return fits(wanted);
}

template <bool kFromRight>
Value find_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "find", {"sub"}, 1);
  const std::string& wanted = arguments.text(0);
  budget.spend_pass(text.size());
  budget.spend_pass(std::min(wanted.size(), text.size()));
  const size_t found = kFromRight ? find_last(text, wanted) : find_first(text, wanted);
  return found == std::string::npos ? Value(int64_t{-1}) : Value::size(length(std::string_view(text).substr(0, found)));
}

Value replace_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "replace", {"old", "new", "count"}, 2);
  return replace(text, arguments.text(0), arguments.text(1), arguments.integer(2, -1), budget);
}

const Named<TextMethod>& methods() {
  static const Named<TextMethod> all = {
      {"capitalize", change<capitalize>},
      {"endswith", starts_or_ends<true>},
      {"find", find_method<false>},
      {"lower", change<lower>},
      {"lstrip", strip_method<Side::left>},
      {"replace", replace_method},
      {"rfind", find_method<true>},
      {"rstrip", strip_method<Side::right>},
      {"split", split_method},
      {"startswith", starts_or_ends<false>},
      {"strip", strip_method<Side::both>},
      {"title", change<title>},
      {"upper", change<upper>},
  };
  return all;
}

} // namespace

std::vector<std::string> text_method_names() {
  return names_of(methods());
}

std::optional<Value> find_text_method(const Value& value, const std::string& name, Budget& budget) {
  const auto found = methods().find(name);
  if (found == methods().end()) {
    return std::nullopt;
  }
  const TextMethod method = found->second;
  budget.spend(Budget::kStepsOfObject);
  return std::make_shared<const Callable>(Callable{
      name, [value, method, &budget](const Arguments& arguments) { return method(value.text(), arguments, budget); },
      1});
}

} // namespace trireme::chat
