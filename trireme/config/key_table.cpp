#include <trireme/config/key_table.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace trireme::config {
namespace {

// ">= 1", "> 0", "0..3" or "0..<1"
void parse_range(std::string_view text, ValueType& out) {
  if (text.starts_with(">=") || text.starts_with("> ")) {
    out.above_least = !text.starts_with(">=");
    out.least = std::stod(std::string(text.substr(2)));
    return;
  }
  const size_t dots = text.find("..");
  if (dots == std::string_view::npos) {
    throw std::logic_error(concat("key table: the range \"", text, "\" is not one"));
  }
  out.least = std::stod(std::string(text.substr(0, dots)));
  text.remove_prefix(dots + 2);
  out.below_most = text.starts_with("<");
  out.most = std::stod(std::string(text.substr(out.below_most ? 1 : 0)));
}

} // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::honoured:
      return "honoured";
    case Verdict::no_effect:
      return "no effect";
    case Verdict::not_yet:
      return "not yet";
    case Verdict::refused:
      return "refused";
  }
  return "?";
}

const std::vector<Section>& all_sections() {
  static const std::vector<Section> sections = [] {
    std::vector<Section> out;
    for (auto part : {run_sections(), engine_sections(), optimizer_sections(), zero_sections(), precision_sections(),
                      later_sections()}) {
      std::move(part.begin(), part.end(), std::back_inserter(out));
    }
    return out;
  }();
  return sections;
}

const Section* find_section(std::string_view path, std::string_view type) {
  for (const Section& section : all_sections()) {
    if (section.path != path) {
      continue;
    }
    const std::vector<std::string> types = split(section.when, ' ');
    const bool fits =
        std::any_of(types.begin(), types.end(), [&](const std::string& t) { return lower(t) == lower(type); });
    if (section.when.empty() || type.empty() || fits) {
      return &section;
    }
  }
  return nullptr;
}

bool depends_on_type(std::string_view path) {
  const Section* section = find_section(path, "");
  return section != nullptr && !section->when.empty();
}

ValueType ValueType::parse(std::string_view text) {
  const size_t space = text.find(' ');
  std::string_view name = text.substr(0, space);
  const std::string_view rest = space == std::string_view::npos ? "" : text.substr(space + 1);
  ValueType out;
  if (name.ends_with("|auto")) {
    out.or_auto = true;
    name.remove_suffix(5);
  }
  static const std::vector<std::pair<std::string_view, Kind>> kinds = {
      {"bool", Kind::boolean},    {"text", Kind::text},
      {"texts", Kind::texts},     {"path", Kind::path},
      {"paths", Kind::paths},     {"reals", Kind::reals},
      {"bytes", Kind::bytes},     {"object", Kind::object},
      {"objects", Kind::objects}, {"object_or_path", Kind::object_or_path},
      {"int", Kind::integer},     {"real", Kind::real},
      {"word", Kind::word},       {"choice", Kind::choice},
      {"switch", Kind::switch_}};
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& entry) { return entry.first == name; });
  if (found == kinds.end()) {
    throw std::logic_error(concat("key table: no type \"", text, '"'));
  }
  out.kind = found->second;
  if (out.kind == Kind::word || out.kind == Kind::switch_) {
    out.words = split(rest.empty() ? "enabled" : rest, '|');
  } else if (!rest.empty()) {
    parse_range(rest, out);
  }
  return out;
}

std::string ValueType::describe() const {
  std::string out;
  switch (kind) {
    case Kind::boolean:
      out = "true or false";
      break;
    case Kind::text:
      return "text";
    case Kind::texts:
      return "text or an array of texts";
    case Kind::path:
      return "a path";
    case Kind::paths:
      return "a path or an array of paths";
    case Kind::bytes:
      return "bytes, as a number or a text with a unit";
    case Kind::object:
    case Kind::switch_:
      return "an object";
    case Kind::objects:
      return "an object or an array of objects";
    case Kind::object_or_path:
      return "an object or a path";
    case Kind::word:
      out = "one of \"" + join(words, "\", \"") + "\"";
      break;
    case Kind::choice:
      return "a name";
    case Kind::integer:
      out = "a whole number";
      break;
    case Kind::real:
      out = "a number";
      break;
    case Kind::reals:
      out = "an array of numbers";
      break;
  }
  if (least && most) {
    out += concat(" from ", *least, below_most ? " to below " : " to ", *most);
  } else if (least) {
    out += concat(above_least ? " > " : " >= ", *least);
  }
  return or_auto ? out + " or \"auto\"" : out;
}

bool ValueType::in_range(double value) const {
  const bool high_enough = !least || value > *least || (!above_least && value == *least);
  const bool low_enough = !most || value < *most || (!below_most && value == *most);
  return high_enough && low_enough;
}

std::vector<nlohmann::json> no_op_values(const Key& key) {
  std::vector<nlohmann::json> out;
  if (!key.default_value.empty() && key.default_value != "required") {
    out.push_back(nlohmann::json::parse(key.default_value));
  }
  for (const nlohmann::json& value : nlohmann::json::parse(key.other_no_ops)) {
    out.push_back(value);
  }
  return out;
}

} // namespace trireme::config
