#include <trireme/base/error.h>
#include <trireme/chat/call_arguments.h>
#include <trireme/chat/characters.h>
#include <trireme/chat/filters.h>
#include <trireme/chat/members.h>
#include <trireme/chat/operators.h>
#include <trireme/chat/show.h>
#include <trireme/chat/value_tests.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>

namespace trireme::chat {
namespace {

Value make_iterator(Values elements, Budget& budget) {
  return make_sequence(Sequence::Type::iterator, std::move(elements), budget);
}

// By keys, without regard to case.
Value dictsort(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "dictsort", {});
  if (!input.is_mapping()) {
    input.require_defined();
    throw TemplateError(concat("dictsort needs a dict, not ", type_name(input)));
  }
  Values sorted = pairs_of(input.mapping(), budget);
  const auto key_of = [&](const Value& pair) {
    const Value& key = pair.sequence().elements.front();
    budget.spend_text(key.is_text() ? key.text().size() : 0);
    return key.is_text() ? Value(lower(key.text())) : key;
  };
  std::ranges::stable_sort(sorted,
                           [&](const Value& a, const Value& b) { return is_less(key_of(a), key_of(b), budget); });
  return make_list(std::move(sorted), budget);
}

template <bool kLast>
Value end_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, kLast ? "last" : "first", {});
  if (kLast && !size_of(input, budget)) {
    throw TemplateError("last needs a list; use |list before it");
  }
  if (input.is_text() && !input.text().empty()) {
    const std::string_view text = input.text();
    return Value(text.substr(kLast ? tokenizer::char_before(text, text.size()) : 0,
                             kLast ? std::string_view::npos : tokenizer::char_at(text, 0).bytes));
  }
  const Values elements = elements_of(input, budget);
  return elements.empty() ? Value::undefined("the sequence has no first and no last item, because it is empty")
         : kLast          ? elements.back()
                          : elements.front();
}

Value items(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "items", {});
  if (!input.is_mapping() && !input.is_undefined()) {
    throw TemplateError("Can only get item pairs from a mapping.");
  }
  return make_iterator(input.is_mapping() ? pairs_of(input.mapping(), budget) : Values(), budget);
}

Value join_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "join", {"d", "attribute"});
  const std::string between = arguments.find(0) == nullptr ? "" : to_text(arguments.get(0), budget);
  const Value* const attribute = arguments.find_unless_none(1);
  std::string out;
  bool is_first = true;
  for (const Value& element : elements_of(input, budget)) {
    if (!std::exchange(is_first, false)) {
      budget.append(out, between);
    }
    budget.append(out, to_text(attribute == nullptr ? element : get_path(element, *attribute, budget), budget));
  }
  return out;
}

Value length_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "length", {});
  const auto size = size_of(input, budget);
  if (!size) {
    throw TemplateError(concat("object of type '", type_name(input), "' has no len()"));
  }
  return Value::size(*size);
}

Value list_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "list", {});
  return make_list(elements_of(input, budget), budget);
}

// map('filter', arguments...) or map(attribute='name').
Value map(const Value& input, const Arguments& given, Budget& budget) {
  if (!is_true(input)) {
    return make_iterator({}, budget);
  }
  Values mapped;
  if (given.positional.empty()) {
    const CallArguments arguments(given, "map", {"attribute"}, 1);
    for (const Value& element : elements_of(input, budget)) {
      mapped.push_back(get_path(element, arguments.get(0), budget));
    }
    return make_iterator(std::move(mapped), budget);
  }
  Arguments rest = given;
  rest.positional.erase(rest.positional.begin());
  const std::string name = to_text(given.positional.front(), budget);
  for (const Value& element : elements_of(input, budget)) {
    mapped.push_back(apply_filter(name, element, rest, budget));
  }
  return make_iterator(std::move(mapped), budget);
}

// select, reject, selectattr and rejectattr.
template <bool kSelects, bool kOfAttribute>
Value choose(const Value& input, const Arguments& given, Budget& budget) {
  if (!is_true(input)) {
    return make_iterator({}, budget);
  }
  Arguments rest = given;
  Value attribute;
  if (kOfAttribute) {
    if (rest.positional.empty()) {
      throw TemplateError("selectattr and rejectattr need the name of an attribute");
    }
    attribute = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
  }
  std::string test;
  if (!rest.positional.empty()) {
    test = to_text(rest.positional.front(), budget);
    rest.positional.erase(rest.positional.begin());
  }
  Values chosen;
  for (const Value& element : elements_of(input, budget)) {
    const Value judged = kOfAttribute ? get_path(element, attribute, budget) : element;
    const bool holds = test.empty() ? is_true(judged) : apply_value_test(test, judged, rest, budget);
    if (holds == kSelects) {
      chosen.push_back(element);
    }
  }
  return make_iterator(std::move(chosen), budget);
}

} // namespace

Named<Filter> sequence_filters() {
  return {{"count", length_filter},
          {"dictsort", dictsort},
          {"first", end_filter<false>},
          {"items", items},
          {"join", join_filter},
          {"last", end_filter<true>},
          {"length", length_filter},
          {"list", list_filter},
          {"map", map},
          {"reject", choose<false, false>},
          {"rejectattr", choose<false, true>},
          {"select", choose<true, false>},
          {"selectattr", choose<true, true>}};
}

} // namespace trireme::chat
