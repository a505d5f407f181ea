#include <trireme/monitor/html.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::monitor {
namespace {

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
    const bool flat = value.size() <= 8 && std::none_of(value.begin(), value.end(),
                                                        [](const auto& element) { return element.is_structured(); });
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

std::string escape_html(std::string_view text) {
  std::string escaped;
  for (const char c : clean_utf8(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
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
