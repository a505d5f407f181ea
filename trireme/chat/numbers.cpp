#include <trireme/chat/numbers.h>

#include <trireme/base/error.h>
#include <trireme/chat/characters.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace trireme::chat {
namespace {

// Without single _ between digits; none where one is elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || std::isalnum(static_cast<unsigned char>(text[i - 1])) == 0 ||
               std::isalnum(static_cast<unsigned char>(text[i + 1])) == 0) {
      return std::nullopt;
    }
  }
  return out;
}

bool take_sign(std::string_view& text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) {
    text.remove_prefix(1);
  }
  return is_negative;
}

} // namespace

std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) {
    throw TemplateError("int(): base must be 0 or 2 to 36");
  }
  text = strip(text, Side::both);
  const bool is_negative = take_sign(text);
  const std::string prefix = lower(text.substr(0, 2));
  const int64_t prefixed = prefix == "0x" ? 16 : prefix == "0o" ? 8 : prefix == "0b" ? 2 : 0;
  if (prefixed != 0 && (base == prefixed || base == 0)) {
    text.remove_prefix(text.size() > 2 && text[2] == '_' ? 3 : 2);
    base = prefixed;
  }
  base = base == 0 ? 10 : base;
  const auto digits = without_underscores(text);
  if (!digits || digits->empty() || digits->front() == '-') {
    return std::nullopt;
  }
  int64_t value = 0;
  const std::string all = (is_negative ? "-" : "") + *digits;
  const auto result = std::from_chars(all.data(), all.data() + all.size(), value, static_cast<int>(base));
  if (result.ptr != all.data() + all.size()) {
    return std::nullopt;
  }
  if (result.ec == std::errc::result_out_of_range) {
    throw TemplateError("an integer does not fit into 64 bits");
  }
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  text = strip(text, Side::both);
  const bool is_negative = take_sign(text);
  const auto shown = without_underscores(text);
  if (!shown || shown->empty()) {
    return std::nullopt;
  }
  const std::string word = lower(*shown);
  const double sign = is_negative ? -1 : 1;
  if (word == "inf" || word == "infinity") {
    return sign * HUGE_VAL;
  }
  if (word == "nan") {
    return std::nan("");
  }
  if (word.find_first_not_of("0123456789.e+-") != std::string::npos || word.front() == '-' || word.front() == '+') {
    return std::nullopt;
  }
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  return end == word.c_str() + word.size() ? std::optional(sign * value) : std::nullopt;
}

int64_t truncate(double value) {
  constexpr double kBeyond = 9223372036854775808.0;
  if (!(value < kBeyond && value >= -kBeyond)) {
    throw TemplateError("a number does not fit into a 64-bit integer");
  }
  return static_cast<int64_t>(value);
}

double round_real(double value, int64_t digits) {
  constexpr int64_t kMostDigits = 330; // a double has no more
  if (!std::isfinite(value) || digits > kMostDigits) {
    return value;
  }
  if (digits >= 0) {
    char text[700];
    std::snprintf(text, sizeof text, "%.*f", static_cast<int>(digits), value);
    return std::strtod(text, nullptr);
  }
  if (digits < -kMostDigits) {
    return std::copysign(0.0, value);
  }
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / scale) * scale;
}

int64_t round_integer(int64_t value, int64_t digits) {
  if (digits >= 0) {
    return value;
  }
  constexpr int64_t kMostDigits = 18;
  if (digits < -kMostDigits) {
    return 0;
  }
  int64_t scale = 1;
  for (int64_t i = digits; i < 0; ++i) {
    scale *= 10;
  }
  int64_t down = value / scale - (value % scale < 0 ? 1 : 0);
  const int64_t rest = value - down * scale;
  down += rest > scale / 2 || (rest == scale / 2 && down % 2 != 0) ? 1 : 0;
  if (__builtin_mul_overflow(down, scale, &down)) {
    throw TemplateError("an integer does not fit into 64 bits");
  }
  return down;
}

} // namespace trireme::chat
