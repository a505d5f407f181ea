#pragma once

#include <trireme/chat/value.h>

#include <optional>
#include <string>
#include <string_view>

// Python's operators. Errors of all: TemplateError, as Python raises TypeError, ZeroDivisionError and the like; for an
// undefined operand; and for integers beyond 64 bits, which Python has.
namespace trireme::chat {

/// `sign` is one of + - * %, the last for numbers alone. Of texts: + and a text times an integer; of lists: +.
Value calculate(const Value& left, std::string_view sign, const Value& right, Budget& budget);
Value negate(const Value& value);

bool is_equal(const Value& left, const Value& right, Budget& budget);
bool is_less(const Value& left, const Value& right, Budget& budget);
/// `sign` is one of == != < <= > >=. Numbers and texts have an order.
bool compare(const Value& left, std::string_view sign, const Value& right, Budget& budget);
/// `item in container`. Uses up an iterator. Cost: linear in both.
bool contains(const Value& container, const Value& item, Budget& budget);

/// value[begin:end] of a text, a list or a tuple; none: left out.
Value slice(const Value& value, std::optional<int64_t> begin, std::optional<int64_t> end, Budget& budget);
/// value[::-1].
Value reverse(const Value& value, Budget& budget);

/// Python's value[key]; none where it raises TypeError or LookupError, which Jinja makes undefined.
std::optional<Value> find_item(const Value& value, const Value& key, Budget& budget);

} // namespace trireme::chat
