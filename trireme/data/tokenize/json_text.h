#pragma once

#include <string>
#include <string_view>

namespace trireme::data {

/// The text that the JSON object `line` has under `key` at its top. Cost: one pass; other values are only checked.
/// Errors: InputError at `where` (file and line) for a line that is not valid JSON, is not UTF-8, nests deeper than
/// 100, is no object, or has the key not once, or not with a text.
std::string text_of_json(std::string_view line, const std::string& key, const std::string& where);

} // namespace trireme::data
