#include <trireme/chat/operators.h>

#include <trireme/base/error.h>
#include <trireme/chat/characters.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>
#include <cmath>

namespace trireme::chat {
namespace {

using Kind = Value::Kind;

[[noreturn]] void refuse(const Value& left, std::string_view sign, const Value& right) {
  left.require_defined();
  right.require_defined();
  throw TemplateError(
      concat("unsupported operand types for ", sign, ": '", type_name(left), "' and '", type_name(right), '\''));
}

[[noreturn]] void overflow() {
  throw TemplateError("an integer does not fit into 64 bits");
}

int64_t floor_modulo(int64_t a, int64_t b) {
  if (b == -1) {
    return 0;
  }
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// Python's: the result has the sign of b.
double floor_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest == 0 ? std::copysign(0.0, b) : (rest < 0) != (b < 0) ? rest + b : rest;
}

Value calculate_integers(int64_t a, std::string_view sign, int64_t b) {
  int64_t result = 0;
  if (sign == "+"   ? __builtin_add_overflow(a, b, &result)
      : sign == "-" ? __builtin_sub_overflow(a, b, &result)
      : sign == "*" ? __builtin_mul_overflow(a, b, &result)
                    : false) {
    overflow();
  }
  if (sign == "%") {
    result = floor_modulo(a, b);
  }
  return result;
}

Value calculate_numbers(const Number& a, std::string_view sign, const Number& b) {
  if (sign == "%" && b.real == 0) {
    throw TemplateError("modulo by zero");
  }
  if (!a.is_real && !b.is_real) {
    return calculate_integers(a.integer, sign, b.integer);
  }
  if (sign == "%") {
    return floor_modulo(a.real, b.real);
  }
  return sign == "+" ? a.real + b.real : sign == "-" ? a.real - b.real : a.real * b.real;
}

Value repeat(const std::string& text, int64_t times, Budget& budget) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  budget.spend_text(count, text.size());
  std::string out;
  for (size_t i = 0; i < count && !text.empty(); ++i) {
    out += text;
  }
  return out;
}

bool is_list_or_tuple(const Value& value) {
  return value.is_sequence() && value.sequence().type <= Sequence::Type::tuple;
}

// Exact: a long double holds every 64-bit integer.
int compare_numbers(const Number& a, const Number& b) {
  const auto left = a.is_real ? static_cast<long double>(a.real) : static_cast<long double>(a.integer);
  const auto right = b.is_real ? static_cast<long double>(b.real) : static_cast<long double>(b.integer);
  return left < right ? -1 : left > right ? 1 : left == right ? 0 : 2; // 2: one is not a number
}

void check_sliceable(const Value& value) {
  if (!value.is_text() && !is_list_or_tuple(value)) {
    value.require_defined();
    throw TemplateError(concat('\'', type_name(value), "' object cannot be sliced"));
  }
}

} // namespace

Value calculate(const Value& left, std::string_view sign, const Value& right, Budget& budget) {
  const auto a = number_of(left);
  const auto b = number_of(right);
  if (a && b) {
    return calculate_numbers(*a, sign, *b);
  }
  if (sign == "+" && left.is_text() && right.is_text()) {
    budget.spend_text(left.text().size() + right.text().size());
    return left.text() + right.text();
  }
  if (sign == "+" && is_list_or_tuple(left) && is_list_or_tuple(right) &&
      left.sequence().type == right.sequence().type) {
    budget.spend_elements(left.sequence().elements.size() + right.sequence().elements.size());
    Values elements = left.sequence().elements;
    elements.insert(elements.end(), right.sequence().elements.begin(), right.sequence().elements.end());
    return make_sequence(left.sequence().type, std::move(elements), budget);
  }
  if (sign == "*" && left.is_text() && b && !b->is_real) {
    return repeat(left.text(), b->integer, budget);
  }
  if (sign == "*" && right.is_text() && a && !a->is_real) {
    return repeat(right.text(), a->integer, budget);
  }
  if (sign == "%" && left.is_text()) {
    throw NotSupported("% does not support texts, write 'text' | format(...)");
  }
  refuse(left, sign, right);
}

Value negate(const Value& value) {
  const auto number = number_of(value);
  if (!number) {
    value.require_defined();
    throw TemplateError(concat("bad operand type for unary -: '", type_name(value), '\''));
  }
  if (number->is_real) {
    return -number->real;
  }
  return calculate_integers(0, "-", number->integer);
}

bool is_equal(const Value& left, const Value& right, Budget& budget) {
  budget.spend();
  const auto a = number_of(left);
  const auto b = number_of(right);
  if (a && b) {
    return compare_numbers(*a, *b) == 0;
  }
  if (left.is_same(right)) {
    return true;
  }
  if (left.kind() != right.kind()) {
    return false;
  }
  switch (left.kind()) {
    case Kind::text:
      budget.spend_text(std::min(left.text().size(), right.text().size()));
      return left.text() == right.text();
    case Kind::sequence: {
      const Sequence& x = left.sequence();
      const Sequence& y = right.sequence();
      return x.type == y.type && x.type != Sequence::Type::iterator &&
             std::ranges::equal(x.elements, y.elements,
                                [&](const Value& i, const Value& j) { return i.is_same(j) || is_equal(i, j, budget); });
    }
    case Kind::mapping: {
      const Mapping& x = left.mapping();
      const Mapping& y = right.mapping();
      return x.size() == y.size() && std::ranges::all_of(x.items(), [&](const auto& item) {
               const Value* const other = y.find(item.first, budget);
               return other != nullptr && (item.second.is_same(*other) || is_equal(item.second, *other, budget));
             });
    }
    default:
      return false;
  }
}

bool compare(const Value& left, std::string_view sign, const Value& right, Budget& budget) {
  if (sign == "==" || sign == "!=") {
    return is_equal(left, right, budget) == (sign == "==");
  }
  budget.spend();
  const bool wants_less = sign.front() == '<';
  const bool or_equal = sign.size() == 2;
  const auto judge = [&](int order) { return order == 0 ? or_equal : order == (wants_less ? -1 : 1); };
  const auto a = number_of(left);
  const auto b = number_of(right);
  if (a && b) {
    return judge(compare_numbers(*a, *b));
  }
  if (left.is_text() && right.is_text()) { // UTF-8 has the order of code points
    budget.spend_pass(std::min(left.text().size(), right.text().size()));
    const int order = left.text().compare(right.text());
    return judge(order < 0 ? -1 : order > 0 ? 1 : 0);
  }
  left.require_defined();
  right.require_defined();
  throw TemplateError(
      concat("'", sign, "' is not supported between '", type_name(left), "' and '", type_name(right), "'"));
}

bool is_less(const Value& left, const Value& right, Budget& budget) {
  return compare(left, "<", right, budget);
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  switch (container.kind()) {
    case Kind::text:
      if (!item.is_text()) {
        throw TemplateError(concat("'in <string>' requires a string, not ", type_name(item)));
      }
      budget.spend_pass(container.text().size());
      budget.spend_pass(std::min(item.text().size(), container.text().size()));
      return find_first(container.text(), item.text()) != std::string_view::npos;
    case Kind::mapping:
      return container.mapping().find(item, budget) != nullptr;
    case Kind::undefined:
      return false;
    case Kind::sequence:
      return std::ranges::any_of(elements_of(container, budget), [&](const Value& element) {
        return element.is_same(item) || is_equal(element, item, budget);
      });
    default:
      throw TemplateError(concat("argument of type '", type_name(container), "' is not iterable"));
  }
}

Value slice(const Value& value, std::optional<int64_t> begin, std::optional<int64_t> end, Budget& budget) {
  check_sliceable(value);
  const auto size = static_cast<int64_t>(*size_of(value, budget));
  const auto place = [&](std::optional<int64_t> bound, int64_t instead) {
    return !bound ? instead : std::clamp<int64_t>(*bound < 0 ? *bound + size : *bound, 0, size);
  };
  const int64_t first = place(begin, 0);
  const int64_t last = std::max(first, place(end, size));
  if (value.is_text()) {
    budget.spend_text(value.text().size());
    std::string_view rest = value.text();
    rest.remove_prefix(byte_of(rest, static_cast<size_t>(first)));
    return rest.substr(0, byte_of(rest, static_cast<size_t>(last - first)));
  }
  const Values& all = value.sequence().elements;
  return make_sequence(value.sequence().type, Values(all.begin() + first, all.begin() + last), budget);
}

Value reverse(const Value& value, Budget& budget) {
  check_sliceable(value);
  if (!value.is_text()) {
    Values elements = elements_of(value, budget);
    std::ranges::reverse(elements);
    return make_sequence(value.sequence().type, std::move(elements), budget);
  }
  const std::string_view text = value.text();
  budget.spend_text(text.size());
  std::string reversed;
  for (size_t end = text.size(); end > 0;) {
    const size_t begin = tokenizer::char_before(text, end);
    reversed += text.substr(begin, end - begin);
    end = begin;
  }
  return reversed;
}

std::optional<Value> find_item(const Value& value, const Value& key, Budget& budget) {
  value.require_defined();
  if (value.is_mapping()) {
    const Value* const found = value.mapping().find(key, budget);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  const auto index = number_of(key);
  if (!index || index->is_real || (!value.is_text() && !is_list_or_tuple(value))) {
    return std::nullopt;
  }
  const auto size = static_cast<int64_t>(*size_of(value, budget));
  const int64_t at = index->integer < 0 ? index->integer + size : index->integer;
  if (at < 0 || at >= size) {
    return std::nullopt;
  }
  if (value.is_sequence()) {
    return value.sequence().elements[static_cast<size_t>(at)];
  }
  budget.spend_pass(value.text().size());
  const std::string_view rest = std::string_view(value.text()).substr(byte_of(value.text(), static_cast<size_t>(at)));
  return Value(rest.substr(0, byte_of(rest, 1)));
}

} // namespace trireme::chat
