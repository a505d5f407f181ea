#include <trireme/monitor/html.h>

#include <trireme/base/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::monitor {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool in_range(std::string_view text, size_t at, int low, int high) {
  return at < text.size() && static_cast<uint8_t>(text[at]) >= low && static_cast<uint8_t>(text[at]) <= high;
}

/// Length of the well-formed sequence at `at` (Unicode table 3-7), 0 when there is none.
size_t sequence_length(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80) {
    return 1;
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    return in_range(text, at + 1, 0x80, 0xBF) ? 2 : 0;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    const int low = lead == 0xE0 ? 0xA0 : 0x80;  // overlong
    const int high = lead == 0xED ? 0x9F : 0xBF; // surrogates
    return in_range(text, at + 1, low, high) && in_range(text, at + 2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const int low = lead == 0xF0 ? 0x90 : 0x80;
    const int high = lead == 0xF4 ? 0x8F : 0xBF;
    const bool whole = in_range(text, at + 1, low, high) && in_range(text, at + 2, 0x80, 0xBF) &&
                       in_range(text, at + 3, 0x80, 0xBF);
    return whole ? 4 : 0;
  }
  return 0;
}

bool is_control(char c) {
  const auto byte = static_cast<uint8_t>(c);
  return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
}

std::string quoted(const std::string& text) {
  return escape_html(nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void append_json(std::string& out, const nlohmann::ordered_json& value, const std::string& indent) {
  const std::string deeper = indent + "  ";
  if (value.is_structured() && value.empty()) {
    out += value.is_object() ? "{}" : "[]";
  } else if (value.is_object()) {
    const char* separator = "{\n";
    for (const auto& [key, member] : value.items()) {
      out += concat(separator, deeper, "<span class=\"k\">", quoted(key), "</span>: ");
      append_json(out, member, deeper);
      separator = ",\n";
    }
    out += concat('\n', indent, '}');
  } else if (value.is_array()) {
    // Short lists of plain values (betas, sizes) read best on one line.
    const bool flat = value.size() <= 8 && std::none_of(value.begin(), value.end(), [](const auto& element) {
      return element.is_structured();
    });
    const char* separator = flat ? "[" : "[\n";
    for (const auto& element : value) {
      out += flat ? separator : separator + deeper;
      append_json(out, element, deeper);
      separator = flat ? ", " : ",\n";
    }
    out += flat ? "]" : concat('\n', indent, ']');
  } else if (value.is_string()) {
    out += concat("<span class=\"s\">", quoted(value.get<std::string>()), "</span>");
  } else {
    out += concat("<span class=\"", value.is_number() ? 'n' : 'w', "\">", value.dump(), "</span>");
  }
}

} // namespace

std::string clean_utf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = sequence_length(text, i);
    if (length == 0 || is_control(text[i])) {
      clean += kReplacement;
      ++i;
      continue;
    }
    clean.append(text, i, length);
    i += length;
  }
  return clean;
}

std::string escape_html(std::string_view text) {
  std::string escaped;
  for (const char c : clean_utf8(text)) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

std::string json_as_html(const nlohmann::ordered_json& value) {
  std::string out;
  append_json(out, value, "");
  return out;
}

} // namespace trireme::monitor
