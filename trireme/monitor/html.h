#pragma once

#include <trireme/base/text.h>

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace trireme::monitor {

using trireme::clean_utf8; // a byte-level model generates invalid UTF-8

/// Escapes any text for an HTML element or a quoted attribute: clean_utf8(), then & < > " ' as entities.
std::string escape_html(std::string_view text);

/// Writes JSON indented, with <span class="k|s|n|w"> around keys, strings, numbers and words; everything escaped.
std::string json_as_html(const nlohmann::ordered_json& value);

} // namespace trireme::monitor
