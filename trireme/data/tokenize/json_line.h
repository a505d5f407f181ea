#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::data {

/// Which keys of a JSON line have its document.
enum class LineFields {
  any,      ///< those that are there
  text,     ///< the text's key
  prompt,   ///< "prompt" and "response"
  messages, ///< "messages", and "tools" if it is there
};

struct JsonLineOptions {
  LineFields fields = LineFields::any;
  std::string text_key = "text";
};

/// The document of a JSON line.
struct JsonLine {
  LineFields fields = LineFields::text;
  /// The text; or the prompt with the response behind it.
  std::string text;
  size_t response_begin = 0; ///< in text
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;
};

/// Reads the object `line`. Cost: one pass, and one more for messages; other values are only checked.
/// Errors: InputError at `where` (file and line) for a line that is not valid JSON, is not UTF-8, nests deeper than
/// 100, is no object, or has a wanted key not once or with another type. LineFields::any also refuses the keys of two
/// documents.
JsonLine read_json_line(std::string_view line, const JsonLineOptions& options, const std::string& where);

} // namespace trireme::data
