#include <trireme/chat/members.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/chat/call_arguments.h>
#include <trireme/chat/operators.h>
#include <trireme/chat/show.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace trireme::chat {
namespace {

using Kind = Value::Kind;

constexpr const char* kMappingMethods[] = {"get", "items", "keys", "values"};

std::optional<Value> find_mapping_method(const Value& self, const std::string& name, Budget& budget) {
  if (std::ranges::find(kMappingMethods, name) == std::end(kMappingMethods)) {
    return std::nullopt;
  }
  const auto call = [self, name, &budget](const Arguments& given) -> Value {
    if (name != "get") {
      const CallArguments arguments(given, name, {});
      Values elements = pairs_of(self.mapping(), budget);
      for (Value& element : elements) {
        const Value pair = element;
        element = name == "items" ? pair : pair.sequence().elements[name == "keys" ? 0 : 1];
      }
      return make_list(std::move(elements), budget);
    }
    const CallArguments arguments(given, name, {"key", "default"}, 1);
    const Value* const found = self.mapping().find(arguments.get(0), budget);
    return found != nullptr ? *found : arguments.find(1) != nullptr ? arguments.get(1) : Value();
  };
  budget.spend(Budget::kStepsOfObject);
  return std::make_shared<const Callable>(Callable{name, call, self.nesting() + 1});
}

Value get_loop_attribute(const Loop& loop, const std::string& name) {
  const size_t size = loop.elements.size();
  const std::pair<std::string, Value> values[] = {
      {"first", loop.index == 0},
      {"index", Value::size(loop.index + 1)},
      {"index0", Value::size(loop.index)},
      {"last", loop.index + 1 == size},
      {"length", Value::size(size)},
      {"nextitem", loop.index + 1 == size ? Value::undefined("there is no next item") : loop.elements[loop.index + 1]},
      {"previtem", loop.index == 0 ? Value::undefined("there is no previous item") : loop.elements[loop.index - 1]},
      {"revindex", Value::size(size - loop.index)},
      {"revindex0", Value::size(size - loop.index - 1)}};
  std::vector<std::string> names;
  for (const auto& [known, value] : values) {
    if (name == known) {
      return value;
    }
    names.push_back(known);
  }
  throw NotSupported(concat("no attribute of loop is named '", printable(name), "'. Supported: ", join(names, ", ")));
}

std::optional<Value> find_attribute(const Value& value, const std::string& name, Budget& budget) {
  switch (value.kind()) {
    case Kind::text:
      return find_text_method(value, name, budget);
    case Kind::mapping:
      return find_mapping_method(value, name, budget);
    case Kind::loop:
      return get_loop_attribute(*value.loop(), name);
    case Kind::name_space: {
      const Value* const found = value.name_space().attributes.find(name);
      return found == nullptr ? std::nullopt : std::optional(*found);
    }
    default:
      return std::nullopt;
  }
}

std::string owner(const Value& value) {
  return value.is_none() ? "None" : type_name(value) + " object";
}

} // namespace

std::string supported_methods() {
  return concat(join(text_method_names(), ", "), " of texts; ",
                join(std::vector<std::string>(std::begin(kMappingMethods), std::end(kMappingMethods)), ", "),
                " of dicts");
}

Value get_attribute(const Value& value, const std::string& name, Budget& budget) {
  value.require_defined();
  budget.spend_pass(name.size());
  if (auto found = find_attribute(value, name, budget)) {
    return *std::move(found);
  }
  if (auto found = find_item(value, name, budget)) {
    return *std::move(found);
  }
  budget.spend(Budget::kStepsOfObject);
  return Value::undefined(concat('\'', owner(value), "' has no attribute '", name, '\''));
}

Value get_item(const Value& value, const Value& key, Budget& budget) {
  if (auto found = find_item(value, key, budget)) {
    return *std::move(found);
  }
  budget.spend(Budget::kStepsOfObject);
  if (key.is_text()) {
    budget.spend_text(key.text().size());
    if (auto found = find_attribute(value, key.text(), budget)) {
      return *std::move(found);
    }
    return Value::undefined(concat('\'', owner(value), "' has no attribute '", key.text(), '\''));
  }
  return Value::undefined(concat(owner(value), " has no element ", repr(key, budget)));
}

Value get_path(const Value& value, const Value& path, Budget& budget) {
  if (!path.is_text()) {
    return get_item(value, path, budget);
  }
  Value found = value;
  budget.spend_pass(path.text().size());
  for (size_t at = 0; at <= path.text().size();) {
    const std::string_view part = std::string_view(path.text()).substr(at, path.text().find('.', at) - at);
    at += part.size() + 1;
    int64_t index = 0;
    const auto result = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = !part.empty() && result.ec == std::errc() && result.ptr == part.data() + part.size();
    found = get_item(found, is_index ? Value(index) : Value(part), budget);
  }
  return found;
}

} // namespace trireme::chat
