#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/chat/call_arguments.h>
#include <trireme/chat/characters.h>
#include <trireme/chat/filters.h>
#include <trireme/chat/members.h>
#include <trireme/chat/operators.h>
#include <trireme/chat/show.h>
#include <trireme/chat/value_tests.h>

#include <algorithm>

namespace trireme::chat {
namespace {

Value make_iterator(Values elements, Budget& budget) {
  return make_sequence(Sequence::Type::iterator, std::move(elements), budget);
}

Value ignore_case(Value value) {
  return value.is_text() ? Value(lower(value.text())) : std::move(value);
}

// An element's attribute, or the element, as a key to compare by.
Value key_of(const Value& element, const Value* attribute, bool case_sensitive, Budget& budget) {
  Value key = attribute == nullptr ? element : get_path(element, *attribute, budget);
  if (key.is_text()) {
    budget.spend_text(key.text().size());
  }
  return case_sensitive ? key : ignore_case(std::move(key));
}

// What the filter makes of values that can be gone through from the end.
Values reversed(const Value& input, Budget& budget) {
  Values elements = elements_of(input, budget);
  std::ranges::reverse(elements);
  return elements;
}

bool is_iterator(const Value& value) {
  return value.is_sequence() && value.sequence().type == Sequence::Type::iterator;
}

Value batch(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "batch", {"linecount", "fill_with"}, 1);
  const int64_t size = arguments.integer(0, 0);
  if (size < 1) {
    throw TemplateError("batch needs a size of at least 1");
  }
  Values rows;
  Values row;
  for (const Value& element : elements_of(input, budget)) {
    if (row.size() == static_cast<size_t>(size)) {
      rows.push_back(make_list(std::exchange(row, {}), budget));
    }
    row.push_back(element);
  }
  if (!row.empty()) {
    if (const Value* const fill = arguments.find_unless_none(1)) {
      budget.spend(static_cast<uint64_t>(size));
      row.resize(static_cast<size_t>(size), *fill);
    }
    rows.push_back(make_list(std::move(row), budget));
  }
  return make_iterator(std::move(rows), budget);
}

Value dictsort(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = arguments.find(1) == nullptr ? "key" : arguments.text(1);
  if (by != "key" && by != "value") {
    throw TemplateError("dictsort sorts by \"key\" or \"value\"");
  }
  if (!input.is_mapping()) {
    input.require_defined();
    throw TemplateError(concat("dictsort needs a dict, not ", type_name(input)));
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.mapping().items()) {
    keyed.emplace_back(key_of(by == "key" ? key : value, nullptr, arguments.flag(0, false), budget),
                       make_sequence(Sequence::Type::tuple, {key, value}, budget));
  }
  const bool is_reversed = arguments.flag(2, false);
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return is_reversed ? is_less(b.first, a.first, budget) : is_less(a.first, b.first, budget);
  });
  Values sorted;
  for (auto& [key, item] : keyed) {
    sorted.push_back(std::move(item));
  }
  return make_list(std::move(sorted), budget);
}

Value first(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "first", {});
  if (is_iterator(input)) { // takes one of it
    Values& rest = input.sequence().elements;
    if (!rest.empty()) {
      budget.spend(rest.size());
      Value found = rest.front();
      rest.erase(rest.begin());
      return found;
    }
  }
  const Values elements = elements_of(input, budget);
  return elements.empty() ? Value::undefined("No first item, sequence was empty.") : elements.front();
}

Value last(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "last", {});
  if (is_iterator(input)) {
    throw TemplateError("an iterator has no last item; use |list first");
  }
  const Values elements = elements_of(input, budget);
  return elements.empty() ? Value::undefined("No last item, sequence was empty.") : elements.back();
}

Value items(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "items", {});
  if (!input.is_mapping() && !input.is_undefined()) {
    throw TemplateError("Can only get item pairs from a mapping.");
  }
  Values pairs;
  if (input.is_mapping()) {
    for (const auto& [key, value] : input.mapping().items()) {
      pairs.push_back(make_sequence(Sequence::Type::tuple, {key, value}, budget));
    }
  }
  return make_iterator(std::move(pairs), budget);
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

Value length_filter(const Value& input, const Arguments& given, Budget&) {
  const CallArguments arguments(given, "length", {});
  const auto size = size_of(input);
  if (!size) {
    throw TemplateError(concat("object of type '", type_name(input), "' has no len()"));
  }
  return Value::size(*size);
}

Value list_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "list", {});
  return make_list(elements_of(input, budget), budget);
}

Value map(const Value& input, const Arguments& given, Budget& budget) {
  Values mapped;
  if (!is_true(input)) {
    return make_iterator({}, budget);
  }
  if (given.positional.empty()) {
    const CallArguments arguments(given, "map", {"attribute", "default"}, 1);
    for (const Value& element : elements_of(input, budget)) {
      mapped.push_back(get_path(element, arguments.get(0), budget, arguments.find_unless_none(1)));
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

template <bool kWantsMost>
Value extreme(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, kWantsMost ? "max" : "min", {"case_sensitive", "attribute"});
  const Values elements = elements_of(input, budget);
  if (elements.empty()) {
    return Value::undefined("No aggregated item, sequence was empty.");
  }
  const auto key = [&](const Value& element) {
    return key_of(element, arguments.find_unless_none(1), arguments.flag(0, false), budget);
  };
  const Value* best = &elements.front();
  Value best_key = key(*best);
  for (size_t i = 1; i < elements.size(); ++i) {
    Value other = key(elements[i]);
    if (kWantsMost ? is_less(best_key, other, budget) : is_less(other, best_key, budget)) {
      best = &elements[i];
      best_key = std::move(other);
    }
  }
  return *best;
}

Value reverse_filter(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "reverse", {});
  Values elements = reversed(input, budget);
  if (input.is_text()) {
    std::string text;
    for (const Value& element : elements) {
      text += element.text();
    }
    return text;
  }
  return is_iterator(input) ? make_list(std::move(elements), budget) : make_iterator(std::move(elements), budget);
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

Value sort(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "sort", {"reverse", "case_sensitive", "attribute"});
  Values attributes;
  const Value* const attribute = arguments.find_unless_none(2);
  if (attribute != nullptr && attribute->is_text()) {
    for (const std::string& part : split(attribute->text(), ',')) {
      attributes.emplace_back(part);
    }
  } else if (attribute != nullptr) {
    attributes.push_back(*attribute);
  }
  struct Keyed {
    Value key;
    Value element;
  };
  std::vector<Keyed> keyed;
  for (const Value& element : elements_of(input, budget)) {
    Values keys;
    for (const Value& part : attributes) {
      keys.push_back(key_of(element, &part, arguments.flag(1, false), budget));
    }
    if (attributes.empty()) {
      keys.push_back(key_of(element, nullptr, arguments.flag(1, false), budget));
    }
    keyed.push_back({make_list(std::move(keys), budget), element});
  }
  const bool is_reversed = arguments.flag(0, false);
  std::ranges::stable_sort(keyed, [&](const Keyed& a, const Keyed& b) {
    return is_reversed ? is_less(b.key, a.key, budget) : is_less(a.key, b.key, budget);
  });
  Values sorted;
  for (Keyed& item : keyed) {
    sorted.push_back(std::move(item.element));
  }
  return make_list(std::move(sorted), budget);
}

Value sum(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "sum", {"attribute", "start"});
  const Value* const attribute = arguments.find_unless_none(0);
  Value total = arguments.find(1) == nullptr ? Value(int64_t{0}) : arguments.get(1);
  if (total.is_text()) {
    throw TemplateError("sum() can't sum strings");
  }
  for (const Value& element : elements_of(input, budget)) {
    total = calculate(total, "+", attribute == nullptr ? element : get_path(element, *attribute, budget), budget);
  }
  return total;
}

Value unique(const Value& input, const Arguments& given, Budget& budget) {
  const CallArguments arguments(given, "unique", {"case_sensitive", "attribute"});
  Mapping seen;
  Values found;
  for (const Value& element : elements_of(input, budget)) {
    const Value key = key_of(element, arguments.find_unless_none(1), arguments.flag(0, false), budget);
    if (seen.find(key, budget) == nullptr) {
      seen.set(key, Value(), budget);
      found.push_back(element);
    }
  }
  return make_iterator(std::move(found), budget);
}

} // namespace

std::vector<NamedFilter> sequence_filters() {
  return {{"batch", batch},
          {"count", length_filter},
          {"dictsort", dictsort},
          {"first", first},
          {"items", items},
          {"join", join_filter},
          {"last", last},
          {"length", length_filter},
          {"list", list_filter},
          {"map", map},
          {"max", extreme<true>},
          {"min", extreme<false>},
          {"reject", choose<false, false>},
          {"rejectattr", choose<false, true>},
          {"reverse", reverse_filter},
          {"select", choose<true, false>},
          {"selectattr", choose<true, true>},
          {"sort", sort},
          {"sum", sum},
          {"unique", unique}};
}

} // namespace trireme::chat
