#include <trireme/chat/functions.h>

#include <trireme/base/error.h>
#include <trireme/chat/call_arguments.h>
#include <trireme/chat/operators.h>
#include <trireme/chat/show.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>

namespace trireme::chat {
namespace {

// Jinja's sandbox has this limit.
constexpr int64_t kMostOfRange = 100'000;

Value range(const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "range", {"start", "stop", "step"}, 1);
  const bool has_stop = arguments.find(1) != nullptr;
  const int64_t begin = has_stop ? arguments.integer(0, 0) : 0;
  const int64_t end = has_stop ? arguments.integer(1, 0) : arguments.integer(0, 0);
  const int64_t step = arguments.integer(2, 1);
  if (step == 0) {
    throw TemplateError("range(): the step is zero");
  }
  const auto distance = step > 0 ? static_cast<__int128>(end) - begin : static_cast<__int128>(begin) - end;
  const auto size = static_cast<__int128>(step > 0 ? step : -static_cast<__int128>(step));
  const __int128 count = distance <= 0 ? 0 : (distance + size - 1) / size;
  if (count > kMostOfRange) {
    throw TemplateError(concat("range() has more than ", kMostOfRange, " elements"));
  }
  Values elements;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
    elements.emplace_back(begin + i * step);
  }
  Value made = make_sequence(Sequence::Type::range, std::move(elements), budget);
  made.sequence().shown =
      step == 1 ? concat("range(", begin, ", ", end, ')') : concat("range(", begin, ", ", end, ", ", step, ')');
  return made;
}

// dict(mapping or pairs, name=value, ...).
Mapping make_dict(const Arguments& given, Budget& budget) {
  if (given.positional.size() > 1) {
    throw TemplateError("dict expected at most 1 argument");
  }
  Mapping mapping;
  if (!given.positional.empty()) {
    const Value& from = given.positional.front();
    if (from.is_mapping()) {
      for (const auto& [key, value] : from.mapping().items()) {
        mapping.set(key, value, budget);
      }
    } else {
      for (const Value& pair : elements_of(from, budget)) {
        const Values both = elements_of(pair, budget);
        if (both.size() != 2) {
          throw TemplateError("dict() needs pairs of a key and a value");
        }
        mapping.set(both[0], both[1], budget);
      }
    }
  }
  for (const auto& [name, value] : given.named) {
    mapping.set(name, value, budget);
  }
  return mapping;
}

Value make_namespace(const Arguments& given, Namespaces& namespaces, Budget& budget) {
  auto made = std::make_shared<Namespace>();
  made->attributes = make_dict(given, budget);
  for (const auto& [name, value] : made->attributes.items()) {
    if (name.is_text() && name.text().starts_with('_')) {
      throw TemplateError(concat("a namespace has no attributes that begin with _, got ", name.text()));
    }
  }
  budget.spend();
  namespaces.push_back(made);
  return made;
}

Value show_time(const Arguments& given, const std::optional<std::tm>& now) {
  const CallArguments arguments(given, "strftime_now", {"format"}, 1);
  std::tm time{};
  if (now) {
    time = *now;
  } else {
    const std::time_t seconds = std::time(nullptr);
    ::localtime_r(&seconds, &time);
  }
  char text[4096];
  const size_t bytes = std::strftime(text, sizeof text, arguments.text(0).c_str(), &time);
  if (bytes == 0 && !arguments.text(0).empty()) {
    throw TemplateError("the format of strftime_now() gives no text, or one that is too long");
  }
  return tokenizer::replace_invalid_utf8(std::string_view(text, bytes));
}

} // namespace

void set_functions(Scope& scope, Namespaces& namespaces, const std::optional<std::tm>& now, Budget& budget) {
  const auto set = [&](const char* name, std::function<Value(const Arguments&)> call) {
    scope.set(name, std::make_shared<const Callable>(Callable{name, std::move(call), 1}));
  };
  set("range", [&budget](const Arguments& given) { return range(given, budget); });
  set("dict", [&budget](const Arguments& given) { return make_mapping(make_dict(given, budget)); });
  set("namespace", [&](const Arguments& given) { return make_namespace(given, namespaces, budget); });
  set("strftime_now", [now](const Arguments& given) { return show_time(given, now); });
  set("raise_exception", [&budget](const Arguments& given) -> Value {
    const CallArguments arguments(given, "raise_exception", {"message"}, 1);
    throw RaisedByTemplate(to_text(arguments.get(0), budget));
  });
}

std::vector<std::string> function_names() {
  return {"dict", "namespace", "raise_exception", "range", "strftime_now"};
}

} // namespace trireme::chat
