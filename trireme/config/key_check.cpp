#include <trireme/config/key_check.h>

#include <trireme/base/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <regex>

namespace trireme::config {
namespace {

using Kind = JsonNode::Kind;

std::string child(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : concat(path, '.', key);
}

bool has_text(const JsonNode& node, std::string_view text) {
  return node.kind() == Kind::string && node.as_string() == text;
}

std::string type_of(const JsonNode& node) {
  const JsonNode* type = node.is_object() ? node.find("type") : nullptr;
  return type != nullptr && type->kind() == Kind::string ? type->as_string() : "";
}

void check_number(const JsonNode& node, const ValueType& type) {
  const double value = type.kind == ValueType::Kind::integer ? static_cast<double>(node.as_integer()) : node.as_real();
  if (!std::isfinite(value) || !type.in_range(value)) {
    node.fail(concat("must be ", type.describe(), ", found ", node.plain().dump()));
  }
}

// Names the accepted values; for a known value that is not accepted, the reason.
void check_choice(const JsonNode& node, std::string_view path) {
  const Section& section = *find_section(path, "");
  const std::string& name = node.as_string();
  std::vector<std::string> names;
  std::vector<std::string> working;
  for (const Key& key : section.keys) {
    names.emplace_back(key.name);
    if (key.verdict == Verdict::honoured) {
      working.emplace_back(key.name);
    }
  }
  const std::string canonical = canonical_choice(path, name);
  if (canonical.empty()) {
    const std::string near = nearest(name, names);
    node.fail(concat('"', name, "\" is not one of the choices"),
              near.empty() ? did_you_mean(name, working) : concat("Did you mean \"", near, "\"?"));
  }
  const Key& key =
      *std::find_if(section.keys.begin(), section.keys.end(), [&](const Key& k) { return k.name == canonical; });
  if (key.verdict != Verdict::honoured) {
    node.fail(concat(key.verdict == Verdict::not_yet ? "not yet: " : "not supported: ", canonical, " is not among ",
                     join(working, ", "), "; ", key.text));
  }
}

// DeepSpeed uses its default for an "auto" that was not filled in; a key without effect may keep it.
void check_auto(const JsonNode& node, const ValueType& type, Verdict verdict) {
  if (!type.or_auto && verdict != Verdict::no_effect) {
    node.fail(
        "\"auto\" is a placeholder that Hugging Face's Trainer fills in before DeepSpeed sees it; it has no "
        "value for this key",
        concat("Write ", type.describe(), ", or leave the key out."));
  }
}

bool holds_text(const ValueType& type) {
  using Type = ValueType::Kind;
  return type.kind == Type::text || type.kind == Type::texts || type.kind == Type::path || type.kind == Type::paths ||
         type.kind == Type::bytes;
}

// The elements of a value of type "objects".
std::vector<const JsonNode*> objects_of(const JsonNode& node) {
  std::vector<const JsonNode*> out;
  if (node.is_object()) {
    out.push_back(&node);
    return out;
  }
  for (const JsonNode& element : node.elements()) {
    out.push_back(&element);
  }
  return out;
}

void check_value(const JsonNode& node, const ValueType& type, const std::string& path, Verdict verdict) {
  using Type = ValueType::Kind;
  if (has_text(node, "auto") && !holds_text(type)) {
    check_auto(node, type, verdict);
    return;
  }
  switch (type.kind) {
    case Type::boolean:
      node.as_bool();
      break;
    case Type::text:
    case Type::path:
      node.as_string();
      break;
    case Type::texts:
    case Type::paths:
      if (node.kind() != Kind::string) {
        for (const JsonNode& element : node.elements()) {
          element.as_string();
        }
      }
      break;
    case Type::bytes:
      if (node.kind() == Kind::string) {
        node.as_string();
      } else {
        node.as_integer();
      }
      break;
    case Type::reals:
      for (const JsonNode& element : node.elements()) {
        check_number(element, type);
      }
      break;
    case Type::object_or_path:
      if (node.kind() == Kind::string) {
        break;
      }
      [[fallthrough]];
    case Type::object:
    case Type::switch_:
      node.members();
      break;
    case Type::objects:
      for (const JsonNode* element : objects_of(node)) {
        element->members();
      }
      break;
    case Type::integer:
    case Type::real:
      check_number(node, type);
      break;
    case Type::word:
      if (std::find(type.words.begin(), type.words.end(), node.as_string()) == type.words.end()) {
        std::vector<std::string> words = type.words;
        if (type.or_auto) {
          words.emplace_back("auto");
        }
        node.fail(concat('"', node.as_string(), "\" is not one of the choices"), did_you_mean(node.as_string(), words));
      }
      break;
    case Type::choice:
      check_choice(node, path);
      break;
  }
}

// An object whose keys depend on its "type".
void check_type(const JsonNode& object, const std::string& type, const std::string& path,
                const std::vector<std::string>& of_program) {
  const JsonNode* said = object.is_object() ? object.find("type") : nullptr;
  const bool is_empty = type.empty() && said != nullptr && has_text(*said, "") && depends_on_type(path);
  if ((type.empty() && !is_empty) || (!type.empty() && find_section(path, type) != nullptr)) {
    return;
  }
  std::vector<std::string> types = of_program;
  for (const Section& section : all_sections()) {
    if (section.path == path) {
      types.emplace_back(section.when);
    }
  }
  object.find("type")->fail(concat('"', type, "\" is not one of the choices"), did_you_mean(type, types));
}

// Whether any "enabled" in it is true, and whether there is one at all.
void look_for_enabled(const JsonNode& node, bool& found, bool& on) {
  for (const auto& [name, value] : node.members()) {
    if (value.is_object()) {
      look_for_enabled(value, found, on);
    } else if (name == "enabled" && value.kind() == Kind::boolean) {
      found = true;
      on = on || value.as_bool();
    }
  }
}

bool switched_off(const JsonNode& node) {
  bool found = false;
  bool on = false;
  look_for_enabled(node, found, on);
  return node.members().empty() || (found && !on);
}

bool asks_for_nothing(const JsonNode& node, const Key& key, const ValueType& type) {
  if (type.kind == ValueType::Kind::switch_) {
    return std::none_of(type.words.begin(), type.words.end(), [&](const std::string& word) {
      const JsonNode* found = node.find(word);
      return found != nullptr && !found->is_null() && found->as_bool();
    });
  }
  if (type.kind == ValueType::Kind::object && node.is_object() && switched_off(node)) {
    return true;
  }
  if (key.verdict == Verdict::no_effect && has_text(node, "auto")) {
    return true;
  }
  const nlohmann::json value = node.plain();
  const std::vector<nlohmann::json> no_ops = no_op_values(key);
  return std::find(no_ops.begin(), no_ops.end(), value) != no_ops.end();
}

// Throws or adds a note, as the verdict demands, for a value that is not a no-op.
void apply_verdict(const JsonNode& node, const Key& key, std::vector<std::string>& notes) {
  std::string fine;
  for (const nlohmann::json& value : no_op_values(key)) {
    fine += value.is_null() ? "" : concat(fine.empty() ? "" : " or ", value.dump());
  }
  const std::string leave_out = concat("Leave it out", fine.empty() ? "" : concat(" or write ", fine), '.');
  switch (key.verdict) {
    case Verdict::honoured:
      return;
    case Verdict::no_effect:
      notes.push_back(concat(node.where(), ": ", node.path(), " has no effect: ", key.text));
      return;
    case Verdict::not_yet:
      node.fail(concat("not yet: ", key.text), leave_out);
    case Verdict::refused:
      node.fail(concat("not supported: ", key.text));
  }
}

void check_key(const JsonNode& object, const JsonNode& value, const Key& key, std::string_view path,
               bool verdict_counts, std::vector<std::string>& notes, const ProgramTypes& of_program) {
  const ValueType type = ValueType::parse(key.type);
  const std::string below = child(path, key.name);
  check_value(value, type, below, key.verdict);
  if (type.kind == ValueType::Kind::object && find_section(below, "") != nullptr) {
    const std::string own = type_of(value);
    const auto found = of_program.find(below);
    const std::vector<std::string> registered = found == of_program.end() ? std::vector<std::string>() : found->second;
    if (std::ranges::find(registered, own) != registered.end()) {
      return;
    }
    check_type(value, own, below, registered);
    check_keys(value, below, own.empty() ? type_of(object) : own, notes, of_program);
  } else if (type.kind == ValueType::Kind::objects) {
    for (const JsonNode* element : objects_of(value)) {
      check_keys(*element, below, "", notes);
    }
  } else if (verdict_counts && !asks_for_nothing(value, key, type)) {
    apply_verdict(value, key, notes);
  }
}

} // namespace

void check_keys(const JsonNode& node, std::string_view path, std::string_view type, std::vector<std::string>& notes,
                const ProgramTypes& of_program) {
  const Section* section = find_section(path, type);
  if (section == nullptr) {
    throw std::logic_error(concat("key table: no section ", path, " for type ", type));
  }
  ObjectReader reader(node);
  for (const Key& key : section->keys) {
    const std::string name(key.name);
    // Leaves refused keys that are absent out of "Known: ...".
    if (key.verdict != Verdict::refused || node.find(name) != nullptr) {
      reader.find(name);
    }
  }
  reader.finish();
  bool off = false;
  for (size_t i = 0; i < section->keys.size(); ++i) {
    const Key& key = section->keys[i];
    const JsonNode* value = node.find(key.name);
    const bool absent = value == nullptr || value->is_null();
    if (absent && key.default_value == "required") {
      node.fail(concat("the key \"", key.name, "\" is missing"),
                concat("It is ", ValueType::parse(key.type).describe(), ": ", key.text));
    }
    if (section->gated && i == 0) {
      off = absent || asks_for_nothing(*value, key, ValueType::parse(key.type));
    }
    if (!absent) {
      check_key(node, *value, key, path, !off, notes, of_program);
    }
  }
}

void forgive_what_is_off(JsonNode& engine, std::vector<std::string>& notes) {
  constexpr std::string_view top = "engine.";
  for (const Section& section : all_sections()) {
    JsonNode* node = section.gated ? engine.at(section.path.substr(top.size())) : nullptr;
    const JsonNode* gate = node != nullptr && node->is_object() ? node->find(section.keys.front().name) : nullptr;
    if (gate == nullptr || gate->is_null() ||
        !asks_for_nothing(*gate, section.keys.front(), ValueType::parse(section.keys.front().type))) {
      continue;
    }
    std::vector<std::string> wrong;
    for (const auto& [name, value] : node->members()) {
      const auto key =
          std::find_if(section.keys.begin(), section.keys.end(), [&, &n = name](const Key& k) { return k.name == n; });
      std::string why = key == section.keys.end() && !ObjectReader::is_note(name) ? "unknown key" : "";
      if (key != section.keys.end() && !value.is_null()) {
        try {
          check_value(value, ValueType::parse(key->type), concat(section.path, '.', name), key->verdict);
        } catch (const InputError&) {
          why = concat("it is not ", ValueType::parse(key->type).describe());
        }
      }
      if (!why.empty()) {
        notes.push_back(
            concat(value.where(), ": ", value.path(), " has no effect: ", why, ", and the section is switched off."));
        wrong.push_back(name);
      }
    }
    for (const std::string& name : wrong) {
      node->erase(name);
    }
  }
}

std::string canonical_choice(std::string_view path, std::string_view name) {
  for (const Key& key : find_section(path, "")->keys) {
    if (lower(key.name) == lower(name)) {
      return std::string(key.name);
    }
  }
  return "";
}

Values::Values(const JsonNode* node, std::string_view path, std::string_view type)
    : node_(node == nullptr || node->is_null() ? nullptr : node), path_(path), section_(find_section(path, type)) {
  if (section_ == nullptr) {
    throw std::logic_error(concat("key table: no section ", path, " for type ", type));
  }
}

const JsonNode* Values::find(const std::string& key) const {
  const bool known =
      std::any_of(section_->keys.begin(), section_->keys.end(), [&](const Key& k) { return k.name == key; });
  if (!known) {
    throw std::logic_error(concat("key table: ", path_, " has no key ", key));
  }
  const JsonNode* found = node_ == nullptr ? nullptr : node_->find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

Values Values::section(const std::string& key, std::string_view type) const {
  return Values(find(key), child(path_, key), type);
}

std::vector<std::string> Values::convert(const JsonNode* node, const std::vector<std::string>&) {
  if (node->kind() == Kind::string) {
    return {node->as_string()};
  }
  std::vector<std::string> out;
  for (const JsonNode& element : node->elements()) {
    out.push_back(element.as_string());
  }
  return out;
}

std::vector<std::string> Values::patterns(const std::string& key) const {
  constexpr size_t kLongest = 1000; // std::regex calls itself for every bracket
  const std::vector<std::string> texts = get(key, std::vector<std::string>());
  for (const std::string& text : texts) {
    if (text.size() > kLongest) {
      find(key)->fail(concat("a pattern has more than ", kLongest, " characters"));
    }
    try {
      std::regex(text, std::regex::ECMAScript);
    } catch (const std::regex_error& error) {
      find(key)->fail(concat("\"", text, "\" is not a regular expression: ", error.what()));
    }
  }
  return texts;
}

std::vector<Expression> Values::expressions(const std::string& key) const {
  std::vector<Expression> out;
  const std::vector<std::string> texts = patterns(key);
  for (size_t i = 0; i < texts.size(); ++i) {
    const JsonNode& list = *find(key);
    const JsonNode& node = list.kind() == JsonNode::Kind::array ? list.elements()[i] : list;
    out.push_back({texts[i], concat(node.where(), ": ", node.path())});
  }
  return out;
}

std::vector<double> Values::convert(const JsonNode* node, const std::vector<double>&) {
  std::vector<double> out;
  for (const JsonNode& element : node->elements()) {
    out.push_back(element.as_real());
  }
  return out;
}

} // namespace trireme::config
