#include <trireme/base/env.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <charconv>
#include <cstdlib>
#include <vector>

namespace trireme::env {

std::optional<std::string> text(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> integer(const char* name) {
  const auto value = text(name);
  if (!value) {
    return std::nullopt;
  }
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
  if (error != std::errc() || end != value->data() + value->size()) {
    throw InputError("env", concat(name, " must be a whole number, got \"", *value, '"'),
                     concat("Set it, or unset ", name, '.'));
  }
  return number;
}

bool flag(const char* name, bool default_value) {
  const auto value = text(name);
  if (!value) {
    return default_value;
  }
  const std::string word = lower(*value);
  if (word == "1" || word == "true" || word == "yes" || word == "on") {
    return true;
  }
  if (word == "0" || word == "false" || word == "no" || word == "off") {
    return false;
  }
  throw InputError("env", concat(name, " must be 0 or 1, got \"", *value, '"'));
}

std::optional<std::pair<int, int>> place(const char* name) {
  const auto value = text(name);
  if (!value) {
    return std::nullopt;
  }
  const std::vector<std::string> parts = split(*value, '/');
  std::pair<int, int> place{-1, 0};
  const auto read = [](const std::string& digits, int& number) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  if (parts.size() != 2 || !read(parts[0], place.first) || !read(parts[1], place.second) || place.first < 0 ||
      place.first >= place.second) {
    throw InputError("env", concat(name, " must be INDEX/COUNT with INDEX < COUNT, got ", *value),
                     "The launcher sets it, for example to 0/4.");
  }
  return place;
}

} // namespace trireme::env
