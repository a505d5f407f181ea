#include <trireme/base/env.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <charconv>
#include <cstdlib>

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
    throw InputError("env", concat(name, " must be a whole number, got \"", *value, '"'), concat("Set it, or unset ", name, '.'));
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

} // namespace trireme::env
