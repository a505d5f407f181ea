#pragma once

#include <trireme/chat/value.h>

#include <cstdint>
#include <optional>
#include <string_view>

// Numbers as Python reads and rounds them.
namespace trireme::chat {

/// int(text, base): spaces around it, a sign, single _ between digits, and the prefix of its base. none: it is none.
/// Errors: TemplateError for one beyond 64 bits.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base);
/// float(text).
std::optional<double> parse_real(std::string_view text);
/// int() of a number. Errors: TemplateError for one beyond 64 bits.
int64_t truncate(double value);
/// round(value, digits): half to even.
double round_real(double value, int64_t digits);
int64_t round_integer(int64_t value, int64_t digits);

} // namespace trireme::chat
