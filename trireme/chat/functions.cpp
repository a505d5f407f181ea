#include <trireme/chat/functions.h>

#include <trireme/base/error.h>
#include <trireme/chat/call_arguments.h>
#include <trireme/chat/show.h>
#include <trireme/tokenizer/unicode.h>

namespace trireme::chat {
namespace {

// Jinja's sandbox has this limit.
constexpr size_t kMostOfRange = 100'000;

Value range(const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "range", {"start", "stop", "step"}, 1);
  const bool has_stop = arguments.find(1) != nullptr;
  const int64_t begin = has_stop ? arguments.integer(0, 0) : 0;
  const int64_t end = has_stop ? arguments.integer(1, 0) : arguments.integer(0, 0);
  const int64_t step = arguments.integer(2, 1);
  if (step == 0) {
    throw TemplateError("range(): the step is zero");
  }
  Values elements;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (elements.size() == kMostOfRange) {
      throw TemplateError(concat("range() has more than ", kMostOfRange, " elements"));
    }
    elements.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) {
      break;
    }
  }
  return make_list(std::move(elements), budget);
}

Value make_namespace(const Arguments& given, Namespaces& namespaces, Budget& budget) {
  if (!given.positional.empty()) {
    throw NotSupported("namespace() takes only named arguments");
  }
  auto made = std::make_shared<Namespace>();
  for (const auto& [name, value] : given.named) {
    made->attributes.set(name, value, budget);
  }
  budget.spend(2 * Budget::kStepsOfObject);
  namespaces.push_back(made);
  return made;
}

Value show_time(const Arguments& given, const std::optional<std::tm>& now, Budget& budget) {
  const CallArguments arguments(given, "strftime_now", {"format"}, 1);
  budget.spend_pass(arguments.text(0).size());
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
  set("namespace", [&](const Arguments& given) { return make_namespace(given, namespaces, budget); });
  set("strftime_now", [now, &budget](const Arguments& given) { return show_time(given, now, budget); });
  set("raise_exception", [&budget](const Arguments& given) -> Value {
    const CallArguments arguments(given, "raise_exception", {"message"}, 1);
    throw RaisedByTemplate(to_text(arguments.get(0), budget));
  });
}

std::vector<std::string> function_names() {
  return {"namespace", "raise_exception", "range", "strftime_now"};
}

} // namespace trireme::chat
