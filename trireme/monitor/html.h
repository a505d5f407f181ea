#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace trireme::monitor {

/// Replaces what is not valid UTF-8, and control characters other than tab and line end, by U+FFFD.
/// A byte-level model generates such text.
std::string clean_utf8(std::string_view text);

/// Makes any text safe inside an HTML element or a quoted attribute: clean_utf8(), then & < > " ' as entities.
std::string escape_html(std::string_view text);

/// Writes JSON indented, with <span class="k|s|n|w"> around keys, strings, numbers and words; everything escaped.
std::string json_as_html(const nlohmann::ordered_json& value);

} // namespace trireme::monitor
