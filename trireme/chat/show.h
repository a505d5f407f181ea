#pragma once

#include <trireme/chat/value.h>

#include <optional>
#include <string>
#include <string_view>

// Values as text. Errors of all: TemplateError for what is too long or too deep.
namespace trireme::chat {

/// Python's str(): what a template prints. Undefined is "".
std::string to_text(const Value& value, Budget& budget);
/// Python's repr().
std::string repr(const Value& value, Budget& budget);

/// The arguments of Python's json.dumps(); ensure_ascii is false.
struct JsonStyle {
  std::optional<size_t> indent = {};       ///< spaces per level
  std::optional<std::string> between = {}; ///< items; by default ", ", and "," with an indent
  std::string after_key = ": ";
};
/// Errors: TemplateError also for a value that is not of JSON, such as an undefined one.
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

} // namespace trireme::chat
