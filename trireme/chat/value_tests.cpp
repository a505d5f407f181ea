#include <trireme/chat/value_tests.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/chat/call_arguments.h>
#include <trireme/chat/characters.h>
#include <trireme/chat/filters.h>
#include <trireme/chat/operators.h>
#include <trireme/chat/show.h>

#include <map>

namespace trireme::chat {
namespace {

using Kind = Value::Kind;
using ValueTest = bool (*)(const Value& value, const Arguments& arguments, Budget& budget);

template <bool (*kJudge)(const Value&)>
bool judge_value(const Value& value, const Arguments& given, Budget&) {
  const CallArguments arguments(given, "the test", {});
  return kJudge(value);
}

template <Kind kKind>
bool has_kind(const Value& value) {
  return value.is(kKind);
}

bool is_defined(const Value& value) {
  return !value.is_undefined();
}

bool is_number(const Value& value) {
  return number_of(value).has_value();
}

template <bool kWanted>
bool is_boolean(const Value& value) {
  return value.is(Kind::boolean) && value.boolean() == kWanted;
}

bool is_never(const Value&) {
  return false;
}

bool is_callable(const Value& value) {
  return value.is(Kind::callable) || value.is(Kind::loop) || value.is_undefined(); // Undefined has __call__
}

// With a length and items.
bool is_sequence_like(const Value& value) {
  return value.is_text() || value.is_mapping() || value.is_undefined() ||
         (value.is_sequence() && value.sequence().type <= Sequence::Type::range);
}

bool is_iterable(const Value& value) {
  return value.is_text() || value.is_mapping() || value.is_undefined() || value.is_sequence() || value.is(Kind::loop);
}

template <int64_t kRest>
bool has_parity(const Value& value, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "the test", {});
  return is_equal(calculate(value, "%", int64_t{2}, budget), kRest, budget);
}

bool is_divisible(const Value& value, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "divisibleby", {"num"}, 1);
  return is_equal(calculate(value, "%", arguments.get(0), budget), int64_t{0}, budget);
}

template <bool (*kJudge)(std::string_view)>
bool judge_text(const Value& value, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "the test", {});
  return kJudge(to_text(value, budget));
}

bool is_in(const Value& value, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "in", {"seq"}, 1);
  return contains(arguments.get(0), value, budget);
}

bool is_same_as(const Value& value, const Arguments& given, Budget&) {
  const CallArguments arguments(given, "sameas", {"other"}, 1);
  return value.is_same(arguments.get(0));
}

enum class Sign { equal, unequal, less, less_equal, greater, greater_equal };

template <Sign kSign>
bool compares(const Value& value, const Arguments& given, Budget& budget) {
  constexpr std::string_view kSigns[] = {"==", "!=", "<", "<=", ">", ">="};
  const CallArguments arguments(given, "the test", {"other"}, 1);
  return compare(value, kSigns[static_cast<size_t>(kSign)], arguments.get(0), budget);
}

bool names_filter(const Value& value, const Arguments&, Budget&) {
  return value.is_text() && is_filter(value.text());
}

bool names_test(const Value& value, const Arguments&, Budget&) {
  return value.is_text() && is_value_test(value.text());
}

const std::map<std::string_view, ValueTest>& tests() {
  static const std::map<std::string_view, ValueTest> all = {
      {"!=", compares<Sign::unequal>},
      {"<", compares<Sign::less>},
      {"<=", compares<Sign::less_equal>},
      {"==", compares<Sign::equal>},
      {">", compares<Sign::greater>},
      {">=", compares<Sign::greater_equal>},
      {"boolean", judge_value<has_kind<Kind::boolean>>},
      {"callable", judge_value<is_callable>},
      {"defined", judge_value<is_defined>},
      {"divisibleby", is_divisible},
      {"eq", compares<Sign::equal>},
      {"equalto", compares<Sign::equal>},
      {"escaped", judge_value<is_never>},
      {"even", has_parity<0>},
      {"false", judge_value<is_boolean<false>>},
      {"filter", names_filter},
      {"float", judge_value<has_kind<Kind::real>>},
      {"ge", compares<Sign::greater_equal>},
      {"greaterthan", compares<Sign::greater>},
      {"gt", compares<Sign::greater>},
      {"in", is_in},
      {"integer", judge_value<has_kind<Kind::integer>>},
      {"iterable", judge_value<is_iterable>},
      {"le", compares<Sign::less_equal>},
      {"lessthan", compares<Sign::less>},
      {"lower", judge_text<is_lower>},
      {"lt", compares<Sign::less>},
      {"mapping", judge_value<has_kind<Kind::mapping>>},
      {"ne", compares<Sign::unequal>},
      {"none", judge_value<has_kind<Kind::none>>},
      {"number", judge_value<is_number>},
      {"odd", has_parity<1>},
      {"sameas", is_same_as},
      {"sequence", judge_value<is_sequence_like>},
      {"string", judge_value<has_kind<Kind::text>>},
      {"test", names_test},
      {"true", judge_value<is_boolean<true>>},
      {"undefined", judge_value<has_kind<Kind::undefined>>},
      {"upper", judge_text<is_upper>},
  };
  return all;
}

} // namespace

bool is_value_test(std::string_view name) {
  return tests().contains(name);
}

std::vector<std::string> value_test_names() {
  std::vector<std::string> names;
  for (const auto& [name, test] : tests()) {
    names.emplace_back(name);
  }
  return names;
}

bool apply_value_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  const auto found = tests().find(name);
  if (found == tests().end()) {
    throw TemplateError(
        concat("no test is named '", printable(name), "'. Supported: ", join(value_test_names(), ", "), '.'));
  }
  return found->second(value, arguments, budget);
}

} // namespace trireme::chat
