#include <trireme/chat/value_tests.h>

#include <trireme/chat/call_arguments.h>
#include <trireme/chat/named.h>
#include <trireme/chat/operators.h>

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

// With a length and items.
bool is_sequence_like(const Value& value) {
  return value.is_text() || value.is_mapping() || value.is_undefined() ||
         (value.is_sequence() && value.sequence().type != Sequence::Type::iterator);
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

bool is_in(const Value& value, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "in", {"seq"}, 1);
  return contains(arguments.get(0), value, budget);
}

template <bool kEqual>
bool equals(const Value& value, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "the test", {"other"}, 1);
  return is_equal(value, arguments.get(0), budget) == kEqual;
}

const Named<ValueTest>& tests() {
  static const Named<ValueTest> all = {
      {"!=", equals<false>},
      {"==", equals<true>},
      {"boolean", judge_value<has_kind<Kind::boolean>>},
      {"defined", judge_value<is_defined>},
      {"divisibleby", is_divisible},
      {"eq", equals<true>},
      {"equalto", equals<true>},
      {"even", has_parity<0>},
      {"false", judge_value<is_boolean<false>>},
      {"float", judge_value<has_kind<Kind::real>>},
      {"in", is_in},
      {"integer", judge_value<has_kind<Kind::integer>>},
      {"iterable", judge_value<is_iterable>},
      {"mapping", judge_value<has_kind<Kind::mapping>>},
      {"ne", equals<false>},
      {"none", judge_value<has_kind<Kind::none>>},
      {"number", judge_value<is_number>},
      {"odd", has_parity<1>},
      {"sequence", judge_value<is_sequence_like>},
      {"string", judge_value<has_kind<Kind::text>>},
      {"true", judge_value<is_boolean<true>>},
      {"undefined", judge_value<has_kind<Kind::undefined>>},
  };
  return all;
}

} // namespace

bool apply_value_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  return find_named(tests(), "test", name)(value, arguments, budget);
}

} // namespace trireme::chat
