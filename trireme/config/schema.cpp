#include <trireme/config/reference.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/config/key_table.h>

#include <nlohmann/json.hpp>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

ordered_json object_schema(std::string_view path);

std::string child(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : concat(path, '.', key);
}

std::string description(const Key& key) {
  switch (key.verdict) {
    case Verdict::honoured:
      return std::string(key.text);
    case Verdict::no_effect:
      return concat("No effect: ", key.text);
    case Verdict::not_yet:
      return concat("Not yet: ", key.text);
    case Verdict::refused:
      return concat("Refused: ", key.text);
  }
  return "";
}

// Writes a range for the schema; integers stay integers.
void add_range(const ValueType& type, ordered_json& out) {
  const auto number = [](double value) {
    return value == static_cast<double>(static_cast<int64_t>(value)) ? ordered_json(static_cast<int64_t>(value))
                                                                     : ordered_json(value);
  };
  if (type.least) {
    out[type.above_least ? "exclusiveMinimum" : "minimum"] = number(*type.least);
  }
  if (type.most) {
    out[type.below_most ? "exclusiveMaximum" : "maximum"] = number(*type.most);
  }
}

ordered_json choice_schema(const std::string& path) {
  ordered_json names = ordered_json::array();
  for (const Key& key : find_section(path, "")->keys) {
    if (key.verdict == Verdict::honoured) {
      names.push_back(key.name);
      names.push_back(lower(key.name));
    }
  }
  return {{"enum", names}};
}

ordered_json type_schema(const ValueType& type, const std::string& path) {
  using Kind = ValueType::Kind;
  ordered_json out;
  switch (type.kind) {
    case Kind::boolean:
      return {{"type", "boolean"}};
    case Kind::text:
    case Kind::path:
      return {{"type", "string"}};
    case Kind::bytes:
      return {{"anyOf", {{{"type", "string"}}, {{"type", "integer"}, {"minimum", 1}}}}};
    case Kind::texts:
    case Kind::paths:
      return {{"anyOf", {{{"type", "string"}}, {{"type", "array"}, {"items", {{"type", "string"}}}}}}};
    case Kind::reals:
      out = {{"type", "number"}};
      add_range(type, out);
      return {{"type", "array"}, {"items", out}};
    case Kind::object:
      return find_section(path, "") != nullptr && !depends_on_type(path) ? object_schema(path)
                                                                         : ordered_json{{"type", "object"}};
    case Kind::objects:
      return {{"anyOf", {object_schema(path), {{"type", "array"}, {"items", object_schema(path)}}}}};
    case Kind::object_or_path: // the description of objects does not apply to strings
      out = object_schema(path);
      out["type"] = {"object", "string"};
      return out;
    case Kind::switch_:
      out = {{"type", "object"}, {"properties", ordered_json::object()}};
      for (const std::string& word : type.words) {
        out["properties"][word] = {{"const", false}};
      }
      return out;
    case Kind::word:
      return {{"enum", type.words}};
    case Kind::choice:
      return choice_schema(path);
    case Kind::integer:
    case Kind::real:
      out = {{"type", type.kind == Kind::integer ? "integer" : "number"}};
      add_range(type, out);
      return out;
  }
  return out;
}

// Values other than texts may be "auto" if the table says so or the key has no effect.
bool may_be_auto(const ValueType& type, Verdict verdict) {
  using Kind = ValueType::Kind;
  const bool value =
      type.is_number() || type.kind == Kind::boolean || type.kind == Kind::reals || type.kind == Kind::word;
  return value && (type.or_auto || verdict == Verdict::no_effect);
}

ordered_json key_schema(const Section& section, const Key& key) {
  const std::string path = child(section.path, key.name);
  const ValueType type = ValueType::parse(key.type);
  const bool has_section = type.kind == ValueType::Kind::object && find_section(path, "") != nullptr;
  const bool must_be_no_op = (key.verdict == Verdict::not_yet || key.verdict == Verdict::refused) && !has_section &&
                             type.kind != ValueType::Kind::switch_ && !(section.gated && &key != &section.keys.front());
  ordered_json out;
  out["description"] = description(key);
  if (must_be_no_op) {
    ordered_json values = ordered_json::array();
    for (const nlohmann::json& value : no_op_values(key)) {
      values.push_back(ordered_json(value));
    }
    if (type.kind == ValueType::Kind::object) {
      values.push_back(ordered_json::object());
    }
    out["enum"] = values;
  } else {
    const ordered_json plain = type_schema(type, path);
    out.update(may_be_auto(type, key.verdict) ? ordered_json{{"anyOf", {plain, {{"const", "auto"}}}}} : plain);
  }
  if (key.verdict == Verdict::refused) {
    out["deprecated"] = true;
  }
  if (!key.default_value.empty() && key.default_value != "required" && key.default_value != "null") {
    out["default"] = ordered_json::parse(key.default_value);
  }
  if (key.default_value == "null" && !must_be_no_op) { // null counts as absent
    if (out.contains("type")) {
      out["type"] = ordered_json::array({out["type"], "null"});
    } else if (out.contains("enum")) {
      out["enum"].push_back(nullptr);
    } else {
      out["anyOf"].push_back({{"type", "null"}});
    }
  }
  return out;
}

ordered_json section_schema(const Section& section) {
  ordered_json out = {{"type", "object"}, {"properties", ordered_json::object()}};
  if (!section.text.empty()) {
    out["description"] = section.text;
  }
  ordered_json required = ordered_json::array();
  for (const Key& key : section.keys) {
    out["properties"][std::string(key.name)] = key_schema(section, key);
    if (key.default_value == "required") {
      required.push_back(key.name);
    }
  }
  if (section.path.empty()) {
    out["properties"]["$schema"] = {{"type", "string"}};
  }
  if (!required.empty()) {
    out["required"] = required;
  }
  out["patternProperties"] = {{"^(x_|_comment)", true}};
  out["additionalProperties"] = false;
  return out;
}

// The sections of a path that depends on a type, each under its condition.
ordered_json cases(const std::string& path, bool type_is_inside) {
  ordered_json out = ordered_json::array();
  for (const Section& section : all_sections()) {
    if (section.path != path) {
      continue;
    }
    ordered_json types = ordered_json::array();
    for (const std::string& type : split(section.when, ' ')) {
      types.push_back(type);
      if (lower(type) != type) {
        types.push_back(lower(type));
      }
    }
    ordered_json then = section_schema(section);
    if (!type_is_inside) {
      then = {{"properties", {{path.substr(path.rfind('.') + 1), then}}}};
    } else {
      then["properties"]["type"]["enum"] = types;
    }
    out.push_back({{"if", {{"properties", {{"type", {{"enum", types}}}}}, {"required", {"type"}}}}, {"then", then}});
  }
  return out;
}

ordered_json object_schema(std::string_view path) {
  ordered_json out = section_schema(*find_section(path, ""));
  ordered_json conditions = ordered_json::array();
  for (const Key& key : find_section(path, "")->keys) {
    const std::string below = child(path, key.name);
    const ValueType type = ValueType::parse(key.type);
    if (type.kind != ValueType::Kind::object || !depends_on_type(below)) {
      continue;
    }
    const bool type_is_inside = out["properties"].contains("type") == false;
    if (type_is_inside) {
      ordered_json names = ordered_json::array();
      for (const Section& section : all_sections()) {
        if (section.path == below) {
          names.push_back(section.when);
        }
      }
      out["properties"][std::string(key.name)].update(
          {{"required", {"type"}}, {"properties", {{"type", {{"enum", names}}}}}, {"allOf", cases(below, true)}});
    } else {
      conditions = cases(below, false);
    }
  }
  if (!conditions.empty()) {
    out["allOf"] = conditions;
  }
  return out;
}

} // namespace

ordered_json run_schema() {
  ordered_json out = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "Trireme run file"}};
  out.update(object_schema(""));
  return out;
}

} // namespace trireme::config
