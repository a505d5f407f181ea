#include <trireme/base/error.h>
#include <trireme/chat/call_arguments.h>
#include <trireme/chat/characters.h>
#include <trireme/chat/format.h>
#include <trireme/chat/members.h>

#include <algorithm>
#include <map>
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

template <bool (*kJudge)(std::string_view)>
Value judge(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "the method", {});
  budget.spend_text(text.size());
  return kJudge(text);
}

template <Side kSide>
Value strip_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "strip", {"chars"});
  const bool has_chars = arguments.find_unless_none(0) != nullptr;
  budget.spend_text(text.size());
  return strip(text, kSide, has_chars ? std::optional<std::string_view>(arguments.text(0)) : std::nullopt);
}

template <bool kFromRight>
Value split_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "split", {"sep", "maxsplit"});
  std::optional<std::string_view> separator;
  if (arguments.find_unless_none(0) != nullptr) {
    separator = arguments.text(0);
    if (separator->empty()) {
      throw TemplateError("split(): the separator is empty");
    }
  }
  const int64_t most = arguments.integer(1, -1);
  budget.spend_text(text.size());
  Values parts;
  for (const std::string_view part :
       kFromRight ? split_text_from_right(text, separator, most) : split_text(text, separator, most)) {
    parts.emplace_back(part);
  }
  return make_list(std::move(parts), budget);
}

Value splitlines_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "splitlines", {"keepends"});
  Values lines;
  for (const std::string_view line : split_lines(text, arguments.flag(0, false))) {
    lines.emplace_back(line);
  }
  budget.spend_text(text.size());
  return make_list(std::move(lines), budget);
}

// text[begin:end], and the code points before it.
struct Part {
  std::string_view text;
  int64_t begin = 0;
  bool exists = true; // begin is not past the end
};

Part part_of(std::string_view text, const CallArguments& arguments, size_t begin_parameter) {
  const auto size = static_cast<int64_t>(length(text));
  const auto place = [&](size_t parameter, int64_t instead) {
    const int64_t given = arguments.find_unless_none(parameter) == nullptr ? instead : arguments.integer(parameter, 0);
    return given < 0 ? std::max<int64_t>(given + size, 0) : given;
  };
  const int64_t begin = place(begin_parameter, 0);
  const int64_t end = std::min(place(begin_parameter + 1, size), size);
  if (begin > end) {
    return {.text = {}, .begin = begin, .exists = false};
  }
  const size_t first = byte_of(text, static_cast<size_t>(begin));
  const std::string_view rest = text.substr(first);
  return {rest.substr(0, byte_of(rest, static_cast<size_t>(end - begin))), begin};
}

template <bool kAtEnd>
Value starts_or_ends(Text text, const Arguments& given, Budget& budget) {
  const char* const name = kAtEnd ? "endswith" : "startswith";
  const CallArguments arguments(given, name, {"prefix", "start", "end"}, 1);
  const Part part = part_of(text, arguments, 1);
  const auto fits = [&](const Value& wanted) {
    if (!wanted.is_text()) {
      wanted.require_defined();
      throw TemplateError(concat(name, "() needs a text or a tuple of texts, not ", type_name(wanted)));
    }
    budget.spend();
    return part.exists && (kAtEnd ? part.text.ends_with(wanted.text()) : part.text.starts_with(wanted.text()));
  };
  const Value& wanted = arguments.get(0);
  if (wanted.is_sequence() && wanted.sequence().type == Sequence::Type::tuple) {
    return std::ranges::any_of(wanted.sequence().elements, fits);
  }
  return fits(wanted);
}

template <bool kFromRight, bool kMustBeThere>
Value find_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "find", {"sub", "start", "end"}, 1);
  budget.spend_text(text.size());
  const Part part = part_of(text, arguments, 1);
  const std::string& wanted = arguments.text(0);
  const size_t found = !part.exists ? std::string_view::npos
                       : kFromRight ? part.text.rfind(wanted)
                                    : part.text.find(wanted);
  if (found != std::string_view::npos) {
    return part.begin + static_cast<int64_t>(length(part.text.substr(0, found)));
  }
  if (kMustBeThere) {
    throw TemplateError("substring not found");
  }
  return int64_t{-1};
}

Value count_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "count", {"sub", "start", "end"}, 1);
  budget.spend_text(text.size());
  const Part part = part_of(text, arguments, 1);
  const std::string& wanted = arguments.text(0);
  if (!part.exists) {
    return int64_t{0};
  }
  if (wanted.empty()) {
    return Value::size(length(part.text) + 1);
  }
  int64_t count = 0;
  for (size_t at = part.text.find(wanted); at != std::string_view::npos;
       at = part.text.find(wanted, at + wanted.size())) {
    ++count;
  }
  return count;
}

Value replace_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "replace", {"old", "new", "count"}, 2);
  return replace(text, arguments.text(0), arguments.text(1), arguments.integer(2, -1), budget);
}

Value join_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "join", {"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const Value& element : elements_of(arguments.get(0), budget)) {
    if (!element.is_text()) {
      element.require_defined();
      throw TemplateError(concat("join() needs texts, found ", type_name(element)));
    }
    if (!std::exchange(first, false)) {
      budget.append(out, text);
    }
    budget.append(out, element.text());
  }
  return out;
}

Value format_method(Text text, const Arguments& given, Budget& budget) {
  const LookUp look_up = [&](const Value& value, const std::string& name, bool is_attribute) {
    return is_attribute ? get_attribute(value, name, budget) : get_path(value, name, budget);
  };
  return brace_format(text, given, look_up, budget);
}

template <bool kSuffix>
Value remove_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, kSuffix ? "removesuffix" : "removeprefix", {"text"}, 1);
  const std::string& part = arguments.text(0);
  budget.spend_text(text.size());
  if (kSuffix ? !text.ends_with(part) : !text.starts_with(part)) {
    return text;
  }
  return kSuffix ? text.substr(0, text.size() - part.size()) : text.substr(part.size());
}

template <bool kFromRight>
Value partition_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "partition", {"sep"}, 1);
  const std::string& separator = arguments.text(0);
  if (separator.empty()) {
    throw TemplateError("partition(): the separator is empty");
  }
  budget.spend_text(text.size());
  const size_t found = kFromRight ? text.rfind(separator) : text.find(separator);
  if (found == std::string::npos) {
    Values parts = kFromRight ? Values{"", "", text} : Values{text, "", ""};
    return make_sequence(Sequence::Type::tuple, std::move(parts), budget);
  }
  return make_sequence(Sequence::Type::tuple, {text.substr(0, found), separator, text.substr(found + separator.size())},
                       budget);
}

enum class Padding { left, right, both, zeros };

template <Padding kPadding>
Value pad_method(Text text, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "the method", {"width", "fillchar"}, 1);
  const int64_t missing = arguments.integer(0, 0) - static_cast<int64_t>(length(text));
  const std::string fill = kPadding == Padding::zeros ? "0" : arguments.find(1) != nullptr ? arguments.text(1) : " ";
  if (length(fill) != 1) {
    throw TemplateError("the fill character must be exactly one character long");
  }
  if (missing <= 0) {
    return text;
  }
  budget.spend_text(static_cast<size_t>(missing), fill.size());
  const auto filled = [&](int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) {
      out += fill;
    }
    return out;
  };
  if (kPadding == Padding::both) { // as CPython: the odd one goes left if the width is odd
    const int64_t left = missing / 2 + (missing & arguments.integer(0, 0) & 1);
    return filled(left) + text + filled(missing - left);
  }
  if (kPadding == Padding::zeros && (text.starts_with('-') || text.starts_with('+'))) {
    return text.substr(0, 1) + filled(missing) + text.substr(1);
  }
  return kPadding == Padding::right ? text + filled(missing) : filled(missing) + text;
}

const std::map<std::string_view, TextMethod>& methods() {
  static const std::map<std::string_view, TextMethod> all = {
      {"capitalize", change<capitalize>},
      {"center", pad_method<Padding::both>},
      {"count", count_method},
      {"endswith", starts_or_ends<true>},
      {"find", find_method<false, false>},
      {"format", format_method},
      {"index", find_method<false, true>},
      {"isalnum", judge<is_alnum>},
      {"isalpha", judge<is_alpha>},
      {"isdecimal", judge<is_digit>},
      {"isdigit", judge<is_digit>},
      {"islower", judge<is_lower>},
      {"isnumeric", judge<is_digit>},
      {"isspace", judge<is_all_space>},
      {"isupper", judge<is_upper>},
      {"join", join_method},
      {"ljust", pad_method<Padding::right>},
      {"lower", change<lower>},
      {"lstrip", strip_method<Side::left>},
      {"partition", partition_method<false>},
      {"removeprefix", remove_method<false>},
      {"removesuffix", remove_method<true>},
      {"replace", replace_method},
      {"rfind", find_method<true, false>},
      {"rindex", find_method<true, true>},
      {"rjust", pad_method<Padding::left>},
      {"rpartition", partition_method<true>},
      {"rsplit", split_method<true>},
      {"rstrip", strip_method<Side::right>},
      {"split", split_method<false>},
      {"splitlines", splitlines_method},
      {"startswith", starts_or_ends<false>},
      {"strip", strip_method<Side::both>},
      {"swapcase", change<swapcase>},
      {"title", change<title>},
      {"upper", change<upper>},
      {"zfill", pad_method<Padding::zeros>},
  };
  return all;
}

} // namespace

std::optional<Value> find_text_method(const Value& value, const std::string& name, Budget& budget) {
  const auto found = methods().find(name);
  if (found == methods().end()) {
    return std::nullopt;
  }
  const TextMethod method = found->second;
  return std::make_shared<const Callable>(Callable{
      name, [value, method, &budget](const Arguments& arguments) { return method(value.text(), arguments, budget); },
      1});
}

} // namespace trireme::chat
