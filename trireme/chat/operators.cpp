#include <trireme/chat/operators.h>

#include <trireme/base/error.h>
#include <trireme/chat/characters.h>
#include <trireme/chat/format.h>
#include <trireme/chat/show.h>

#include <algorithm>
#include <cmath>
#include <limits>

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

int64_t floor_divide(int64_t a, int64_t b) {
  if (a == std::numeric_limits<int64_t>::min() && b == -1) {
    overflow();
  }
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t floor_modulo(int64_t a, int64_t b) {
  if (b == -1) {
    return 0;
  }
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      overflow();
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) {
      overflow();
    }
  }
  return result;
}

Value calculate_integers(int64_t a, std::string_view sign, int64_t b) {
  int64_t result = 0;
  if (sign == "+"   ? __builtin_add_overflow(a, b, &result)
      : sign == "-" ? __builtin_sub_overflow(a, b, &result)
      : sign == "*" ? __builtin_mul_overflow(a, b, &result)
                    : false) {
    overflow();
  }
  if (sign == "//" || sign == "%") {
    if (b == 0) {
      throw TemplateError("integer division or modulo by zero");
    }
    result = sign == "%" ? floor_modulo(a, b) : floor_divide(a, b);
  } else if (sign == "**") {
    result = power(a, b);
  }
  return result;
}

// As CPython's float_divmod().
Value floor_divide_reals(double a, double b, bool is_modulo) {
  if (b == 0) {
    throw TemplateError("float division or modulo by zero");
  }
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (is_modulo) {
    return rest;
  }
  if (quotient == 0) {
    return std::copysign(0.0, a / b);
  }
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value power_of_reals(double a, double b) {
  if (a == 0 && b < 0) {
    throw TemplateError("0.0 cannot be raised to a negative power");
  }
  if (a < 0 && std::isfinite(b) && std::isfinite(a) && b != std::floor(b)) {
    throw TemplateError("a negative number to a fractional power is a complex number, which is not supported");
  }
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
    throw TemplateError("the result of ** is too large");
  }
  return result;
}

Value calculate_numbers(const Number& a, std::string_view sign, const Number& b) {
  if (!a.is_real && !b.is_real && sign != "/" && !(sign == "**" && b.integer < 0)) {
    return calculate_integers(a.integer, sign, b.integer);
  }
  if (sign == "+") {
    return a.real + b.real;
  }
  if (sign == "-") {
    return a.real - b.real;
  }
  if (sign == "*") {
    return a.real * b.real;
  }
  if (sign == "/") {
    if (b.real == 0) {
      throw TemplateError("division by zero");
    }
    return a.real / b.real;
  }
  return sign == "**" ? power_of_reals(a.real, b.real) : floor_divide_reals(a.real, b.real, sign == "%");
}

Value repeat(const Value& value, int64_t times, Budget& budget) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (value.is_text()) {
    budget.spend_text(count, value.text().size());
    std::string text;
    text.reserve(count * value.text().size());
    for (size_t i = 0; i < count && !value.text().empty(); ++i) {
      text += value.text();
    }
    return text;
  }
  const Sequence& sequence = value.sequence();
  budget.spend_text(count, sequence.elements.size()); // no overflow in the next product
  budget.spend(count * sequence.elements.size());
  Values elements;
  for (size_t i = 0; i < count && !sequence.elements.empty(); ++i) {
    elements.insert(elements.end(), sequence.elements.begin(), sequence.elements.end());
  }
  return make_sequence(sequence.type, std::move(elements), budget);
}

bool is_list_or_tuple(const Value& value) {
  return value.is_sequence() && value.sequence().type <= Sequence::Type::tuple;
}

bool is_repeatable(const Value& value) {
  return value.is_text() || is_list_or_tuple(value);
}

// Exact: a long double holds every 64-bit integer.
int compare_numbers(const Number& a, const Number& b) {
  const auto left = a.is_real ? static_cast<long double>(a.real) : static_cast<long double>(a.integer);
  const auto right = b.is_real ? static_cast<long double>(b.real) : static_cast<long double>(b.integer);
  return left < right ? -1 : left > right ? 1 : left == right ? 0 : 2; // 2: one is not a number
}

// How Python shows range[begin:end:step], of a range with these elements.
std::string show_range(const Values& elements, int64_t begin, int64_t end, int64_t step) {
  const int64_t first = elements.empty() ? 0 : elements.front().integer();
  const int64_t old_step = elements.size() > 1 ? elements[1].integer() - first : 1;
  const std::string bounds = concat("range(", first + begin * old_step, ", ", first + end * old_step);
  return old_step * step == 1 ? bounds + ")" : concat(bounds, ", ", old_step * step, ')');
}

// A position in a sequence of `size` elements as slice.indices() gives it.
int64_t clamp(std::optional<int64_t> bound, int64_t size, int64_t step, int64_t instead) {
  if (!bound) {
    return instead;
  }
  const int64_t position = *bound < 0 ? (*bound < -size ? -1 : *bound + size) : *bound;
  return *bound < 0 && position < 0 ? (step < 0 ? -1 : 0) : std::min(position, step < 0 ? size - 1 : size);
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
    Values elements = left.sequence().elements;
    elements.insert(elements.end(), right.sequence().elements.begin(), right.sequence().elements.end());
    return make_sequence(left.sequence().type, std::move(elements), budget);
  }
  if (sign == "*" && is_repeatable(left) && b && !b->is_real) {
    return repeat(left, b->integer, budget);
  }
  if (sign == "*" && is_repeatable(right) && a && !a->is_real) {
    return repeat(right, a->integer, budget);
  }
  if (sign == "%" && left.is_text()) {
    return printf_format(left.text(), right, budget);
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

Value affirm(const Value& value) {
  const auto number = number_of(value);
  if (!number) {
    value.require_defined();
    throw TemplateError(concat("bad operand type for unary +: '", type_name(value), '\''));
  }
  return number->is_real ? Value(number->real) : Value(number->integer);
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
      return x.type == y.type && x.type <= Sequence::Type::range &&
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
    const int order = left.text().compare(right.text());
    return judge(order < 0 ? -1 : order > 0 ? 1 : 0);
  }
  if (is_list_or_tuple(left) && is_list_or_tuple(right) && left.sequence().type == right.sequence().type) {
    const Values& x = left.sequence().elements;
    const Values& y = right.sequence().elements;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!is_equal(x[i], y[i], budget)) {
        return compare(x[i], sign, y[i], budget);
      }
    }
    return judge(x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0);
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
      budget.spend_text(container.text().size());
      return container.text().find(item.text()) != std::string::npos;
    case Kind::mapping:
      check_hashable(item);
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

void check_hashable(const Value& key) {
  if (key.is_sequence() && key.sequence().type == Sequence::Type::tuple) {
    std::ranges::for_each(key.sequence().elements, check_hashable);
  } else if (key.is_mapping() || (key.is_sequence() && key.sequence().type == Sequence::Type::list)) {
    throw TemplateError(concat("unhashable type: '", type_name(key), '\''));
  }
}

Value slice(const Value& value, const Slice& slice, Budget& budget) {
  const bool fits = value.is_text() || (value.is_sequence() && value.sequence().type <= Sequence::Type::range);
  if (!fits) {
    value.require_defined();
    throw TemplateError(concat('\'', type_name(value), "' object cannot be sliced"));
  }
  const int64_t step = slice.step.value_or(1);
  if (step == 0) {
    throw TemplateError("slice step cannot be zero");
  }
  const auto size = static_cast<int64_t>(*size_of(value));
  const int64_t begin = clamp(slice.begin, size, step, step < 0 ? size - 1 : 0);
  const int64_t end = clamp(slice.end, size, step, step < 0 ? -1 : size);
  if (value.is_text() && step == 1) {
    const std::string& text = value.text();
    budget.spend_text(text.size());
    const size_t first = byte_of(text, static_cast<size_t>(begin));
    const std::string_view rest = std::string_view(text).substr(first);
    return rest.substr(0, byte_of(rest, static_cast<size_t>(std::max<int64_t>(end - begin, 0))));
  }
  std::vector<int64_t> positions;
  for (int64_t i = begin; step < 0 ? i > end : i < end;) {
    positions.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) {
      break;
    }
  }
  budget.spend(positions.size());
  if (value.is_text()) {
    const std::vector<std::string_view> all = characters(value.text());
    budget.spend(all.size());
    std::string text;
    for (const int64_t i : positions) {
      text += all[static_cast<size_t>(i)];
    }
    return text;
  }
  const Sequence& sequence = value.sequence();
  Values elements;
  for (const int64_t i : positions) {
    elements.push_back(sequence.elements[static_cast<size_t>(i)]);
  }
  const Value sliced = make_sequence(sequence.type, std::move(elements), budget);
  if (sequence.type == Sequence::Type::range) {
    sliced.sequence().shown = show_range(sequence.elements, begin, end, step);
  }
  return sliced;
}

std::optional<Value> find_item(const Value& value, const Value& key, Budget& budget) {
  value.require_defined();
  if (value.is_mapping()) {
    if (key.is_sequence() || key.is_mapping()) {
      try {
        check_hashable(key);
      } catch (const TemplateError&) {
        return std::nullopt;
      }
    }
    const Value* const found = value.mapping().find(key, budget);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  const auto index = number_of(key);
  const bool has_positions = value.is_text() || (value.is_sequence() && value.sequence().type <= Sequence::Type::range);
  if (!index || index->is_real || !has_positions) {
    return std::nullopt;
  }
  const auto size = static_cast<int64_t>(*size_of(value));
  const int64_t at = index->integer < 0 ? index->integer + size : index->integer;
  if (at < 0 || at >= size) {
    return std::nullopt;
  }
  if (value.is_sequence()) {
    return value.sequence().elements[static_cast<size_t>(at)];
  }
  const std::string_view rest = std::string_view(value.text()).substr(byte_of(value.text(), static_cast<size_t>(at)));
  budget.spend_text(value.text().size());
  return Value(rest.substr(0, byte_of(rest, 1)));
}

} // namespace trireme::chat
