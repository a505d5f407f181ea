#include <trireme/chat/value.h>

#include <trireme/base/error.h>
#include <trireme/chat/characters.h>
#include <trireme/chat/operators.h>
#include <trireme/tokenizer/unicode.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>

namespace trireme::chat {
namespace {

void check_nesting(int nesting) {
  if (nesting > kMostNesting) {
    throw TemplateError(concat("lists and dicts lie more than ", kMostNesting, " levels inside of each other"));
  }
}

int nesting_of(const Values& elements) {
  int most = 0;
  for (const Value& element : elements) {
    most = std::max(most, element.nesting());
  }
  return most + 1;
}

Value from_json(const nlohmann::ordered_json& json, Budget& budget, int level) {
  using Type = nlohmann::json::value_t;
  check_nesting(level);
  budget.spend();
  switch (json.type()) {
    case Type::boolean:
      return json.get<bool>();
    case Type::number_integer:
      return json.get<int64_t>();
    case Type::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        throw TemplateError(concat("the number ", json.dump(), " does not fit into 64 bits"));
      }
      return json.get<int64_t>();
    case Type::number_float:
      return json.get<double>();
    case Type::string: {
      const auto& text = json.get_ref<const std::string&>();
      budget.spend_text(text.size());
      return tokenizer::replace_invalid_utf8(text);
    }
    case Type::array: {
      Values elements;
      for (const auto& element : json) {
        elements.push_back(from_json(element, budget, level + 1));
      }
      return make_list(std::move(elements), budget);
    }
    case Type::object: {
      Mapping mapping;
      for (const auto& [key, value] : json.items()) {
        mapping.set(tokenizer::replace_invalid_utf8(key), from_json(value, budget, level + 1), budget);
      }
      return make_mapping(std::move(mapping));
    }
    default:
      return {};
  }
}

} // namespace

Value Value::undefined(std::string why) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(why))};
  return value;
}

void Value::require_defined() const {
  if (const auto* undefined = std::get_if<Undefined>(&data_)) {
    throw TemplateError(*undefined->why);
  }
}

bool Value::is_same(const Value& other) const {
  if (kind() != other.kind()) {
    return false;
  }
  return std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, Undefined> || std::is_same_v<T, std::monostate>) {
          return true;
        } else {
          return value == std::get<T>(other.data_);
        }
      },
      data_);
}

int Value::nesting() const {
  switch (kind()) {
    case Kind::sequence:
      return sequence().nesting;
    case Kind::mapping:
      return mapping().nesting();
    case Kind::loop:
      return loop()->nesting;
    case Kind::callable:
      return callable().nesting;
    case Kind::name_space:
      return 1;
    default:
      return 0;
  }
}

const Value* Mapping::find(std::string_view key) const {
  const auto found = by_text_.find(key);
  return found == by_text_.end() ? nullptr : &items_[found->second].second;
}

const Value* Mapping::find(const Value& key, Budget& budget) const {
  if (key.is_text()) {
    budget.spend_pass(key.text().size());
    return find(key.text());
  }
  for (const auto& [other, value] : items_) {
    if (!other.is_text() && is_equal(other, key, budget)) {
      return &value;
    }
  }
  return nullptr;
}

void Mapping::set(const Value& key, Value value, Budget& budget) {
  budget.spend();
  if (!key.is_text() && !key.is_none() && !number_of(key)) {
    throw TemplateError(concat("a ", type_name(key), " cannot be the key of a dict"));
  }
  nesting_ = std::max(nesting_, value.nesting() + 1);
  check_nesting(nesting_);
  if (const Value* const found = find(key, budget)) {
    const_cast<Value&>(*found) = std::move(value); // of items_, which is not const
    return;
  }
  budget.spend(Budget::kStepsOfObject);
  items_.emplace_back(key, std::move(value));
  if (key.is_text()) {
    by_text_.emplace(items_.back().first.text(), items_.size() - 1);
  }
}

Value make_sequence(Sequence::Type type, Values elements, Budget& budget) {
  budget.spend_elements(elements.size());
  budget.spend(Budget::kStepsOfObject / 2);
  const int nesting = nesting_of(elements);
  check_nesting(nesting);
  return std::make_shared<Sequence>(Sequence{.type = type, .elements = std::move(elements), .nesting = nesting});
}

Value make_list(Values elements, Budget& budget) {
  return make_sequence(Sequence::Type::list, std::move(elements), budget);
}

Value make_mapping(Mapping mapping) {
  return std::make_shared<const Mapping>(std::move(mapping));
}

Values pairs_of(const Mapping& mapping, Budget& budget) {
  budget.spend_elements(mapping.size(), Budget::kStepsOfObject);
  Values pairs;
  for (const auto& [key, value] : mapping.items()) {
    pairs.push_back(make_sequence(Sequence::Type::tuple, {key, value}, budget));
  }
  return pairs;
}

Value from_json(const nlohmann::ordered_json& json, Budget& budget) {
  return from_json(json, budget, 0);
}

std::string type_name(const Value& value) {
  constexpr const char* kNames[] = {"Undefined", "NoneType", "bool",      "int",         "float",   "str",
                                    "list",      "dict",     "Namespace", "LoopContext", "function"};
  constexpr const char* kOfSequences[] = {"list", "tuple", "iterator"};
  return value.is_sequence() ? kOfSequences[static_cast<size_t>(value.sequence().type)]
                             : kNames[static_cast<size_t>(value.kind())];
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::undefined:
    case Value::Kind::none:
      return false;
    case Value::Kind::boolean:
      return value.boolean();
    case Value::Kind::integer:
      return value.integer() != 0;
    case Value::Kind::real:
      return value.real() != 0;
    case Value::Kind::text:
      return !value.text().empty();
    case Value::Kind::sequence:
      return value.sequence().type == Sequence::Type::iterator || !value.sequence().elements.empty();
    case Value::Kind::mapping:
      return value.mapping().size() > 0;
    default:
      return true;
  }
}

Values elements_of(const Value& value, Budget& budget) {
  Values elements;
  switch (value.kind()) {
    case Value::Kind::undefined:
      return {};
    case Value::Kind::text: {
      const std::string_view text = value.text();
      budget.spend_elements(*size_of(value, budget), Budget::kStepsOfObject);
      for (size_t at = 0; at < text.size(); at += elements.back().text().size()) {
        elements.emplace_back(text.substr(at, tokenizer::char_at(text, at).bytes));
      }
      break;
    }
    case Value::Kind::sequence: {
      Sequence& sequence = value.sequence();
      budget.spend_elements(sequence.elements.size());
      if (sequence.type == Sequence::Type::iterator) {
        if (!std::exchange(sequence.used, true)) {
          elements = std::move(sequence.elements);
          sequence.elements.clear();
        }
      } else {
        elements = sequence.elements;
      }
      break;
    }
    case Value::Kind::mapping:
      budget.spend_elements(value.mapping().size());
      for (const auto& item : value.mapping().items()) {
        elements.push_back(item.first);
      }
      break;
    default:
      throw TemplateError(concat("'", type_name(value), "' object is not iterable"));
  }
  return elements;
}

std::optional<size_t> size_of(const Value& value, Budget& budget) {
  switch (value.kind()) {
    case Value::Kind::undefined:
      return 0;
    case Value::Kind::text:
      budget.spend_pass(value.text().size());
      return length(value.text());
    case Value::Kind::sequence:
      return value.sequence().type == Sequence::Type::iterator ? std::nullopt
                                                               : std::optional(value.sequence().elements.size());
    case Value::Kind::mapping:
      return value.mapping().size();
    default:
      return std::nullopt;
  }
}

std::optional<Number> number_of(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::boolean:
      return Number{false, value.boolean() ? 1 : 0, value.boolean() ? 1.0 : 0.0};
    case Value::Kind::integer:
      return Number{false, value.integer(), static_cast<double>(value.integer())};
    case Value::Kind::real:
      return Number{true, 0, value.real()};
    default:
      return std::nullopt;
  }
}

} // namespace trireme::chat
