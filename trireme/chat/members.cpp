#include <trireme/chat/members.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/chat/call_arguments.h>
#include <trireme/chat/operators.h>
#include <trireme/chat/show.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

namespace trireme::chat {
namespace {

using Kind = Value::Kind;
using Method = std::function<Value(const Arguments&)>;

Value make_method(const Value& self, const std::string& name, Method method) {
  return std::make_shared<const Callable>(Callable{name, std::move(method), self.nesting() + 1});
}

Value make_view(const Mapping& mapping, Sequence::Type type, Budget& budget) {
  Values elements;
  for (const auto& [key, value] : mapping.items()) {
    if (type == Sequence::Type::items) {
      elements.push_back(make_sequence(Sequence::Type::tuple, {key, value}, budget));
    } else {
      elements.push_back(type == Sequence::Type::keys ? key : value);
    }
  }
  return make_sequence(type, std::move(elements), budget);
}

std::optional<Value> find_mapping_method(const Value& self, const std::string& name, Budget& budget) {
  if (name == "get") {
    return make_method(self, name, [self, &budget](const Arguments& given) -> Value {
      const CallArguments arguments(given, "get", {"key", "default"}, 1);
      if (!given.named.empty()) {
        throw TemplateError("get() takes no named arguments");
      }
      check_hashable(arguments.get(0));
      const Value* const found = self.mapping().find(arguments.get(0), budget);
      return found != nullptr ? *found : arguments.find(1) != nullptr ? arguments.get(1) : Value();
    });
  }
  const auto view = [&](Sequence::Type type) {
    return make_method(self, name, [self, name, type, &budget](const Arguments& given) {
      const CallArguments arguments(given, name, {});
      return make_view(self.mapping(), type, budget);
    });
  };
  if (name == "items") {
    return view(Sequence::Type::items);
  }
  if (name == "keys") {
    return view(Sequence::Type::keys);
  }
  if (name == "values") {
    return view(Sequence::Type::values);
  }
  if (name == "copy") {
    return make_method(self, name, [self](const Arguments&) { return self; });
  }
  return std::nullopt;
}

std::optional<Value> find_sequence_method(const Value& self, const std::string& name, Budget& budget) {
  const Sequence::Type type = self.sequence().type;
  if (type > Sequence::Type::range) {
    return std::nullopt;
  }
  if (name == "count") {
    return make_method(self, name, [self, &budget](const Arguments& given) {
      const CallArguments arguments(given, "count", {"value"}, 1);
      return Value::size(static_cast<size_t>(std::ranges::count_if(self.sequence().elements, [&](const Value& element) {
        return is_equal(element, arguments.get(0), budget);
      })));
    });
  }
  if (name == "index") {
    return make_method(self, name, [self, &budget](const Arguments& given) {
      const CallArguments arguments(given, "index", {"value"}, 1);
      const Values& elements = self.sequence().elements;
      const auto found = std::ranges::find_if(
          elements, [&](const Value& element) { return is_equal(element, arguments.get(0), budget); });
      if (found == elements.end()) {
        throw TemplateError(concat(repr(arguments.get(0), budget), " is not in the list"));
      }
      return Value::size(static_cast<size_t>(found - elements.begin()));
    });
  }
  if (name == "copy" && type == Sequence::Type::list) {
    return make_method(self, name, [self](const Arguments&) { return self; });
  }
  return std::nullopt;
}

Value cycle(const std::shared_ptr<Loop>& loop, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) {
    throw TemplateError("loop.cycle() needs values");
  }
  return arguments.positional[loop->index % arguments.positional.size()];
}

Value changed(const std::shared_ptr<Loop>& loop, const Arguments& arguments, Budget& budget) {
  const bool is_same =
      loop->last_changed && std::ranges::equal(*loop->last_changed, arguments.positional,
                                               [&](const Value& a, const Value& b) { return is_equal(a, b, budget); });
  if (!is_same && !loop->ended) { // what a loop holds could hold the loop
    loop->last_changed = arguments.positional;
  }
  return !is_same;
}

std::optional<Value> find_loop_attribute(const Value& self, const std::string& name, Budget& budget) {
  const std::shared_ptr<Loop>& loop = self.loop();
  const size_t size = loop->elements.size();
  const std::array<std::pair<std::string_view, Value>, 9> values = {{{"index", Value::size(loop->index + 1)},
                                                                     {"index0", Value::size(loop->index)},
                                                                     {"revindex", Value::size(size - loop->index)},
                                                                     {"revindex0", Value::size(size - loop->index - 1)},
                                                                     {"first", loop->index == 0},
                                                                     {"last", loop->index + 1 == size},
                                                                     {"length", Value::size(size)},
                                                                     {"depth", int64_t{1}},
                                                                     {"depth0", int64_t{0}}}};
  for (const auto& [known, value] : values) {
    if (name == known) {
      return value;
    }
  }
  if (name == "previtem") {
    return loop->index == 0 ? Value::undefined("there is no previous item") : loop->elements[loop->index - 1];
  }
  if (name == "nextitem") {
    return loop->index + 1 == size ? Value::undefined("there is no next item") : loop->elements[loop->index + 1];
  }
  if (name == "cycle") {
    return make_method(self, name, [loop](const Arguments& arguments) { return cycle(loop, arguments); });
  }
  if (name == "changed") {
    return make_method(self, name,
                       [loop, &budget](const Arguments& arguments) { return changed(loop, arguments, budget); });
  }
  return std::nullopt;
}

// Methods that would change the value, which the sandbox forbids.
bool is_forbidden(const Value& value, std::string_view name) {
  constexpr std::string_view kOfLists[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
  constexpr std::string_view kOfDicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
  return value.is_mapping() ? std::ranges::find(kOfDicts, name) != std::end(kOfDicts)
                            : value.is_sequence() && value.sequence().type == Sequence::Type::list &&
                                  std::ranges::find(kOfLists, name) != std::end(kOfLists);
}

std::optional<Value> find_attribute(const Value& value, const std::string& name, Budget& budget) {
  if (is_forbidden(value, name)) {
    return Value::undefined(
        concat("the method '", name, "' of a ", type_name(value), " is not allowed: it changes it"));
  }
  switch (value.kind()) {
    case Kind::text:
      return find_text_method(value, name, budget);
    case Kind::mapping:
      return find_mapping_method(value, name, budget);
    case Kind::sequence:
      return find_sequence_method(value, name, budget);
    case Kind::loop:
      return find_loop_attribute(value, name, budget);
    case Kind::name_space: {
      const Value* const found = value.name_space().attributes.find(name);
      return found == nullptr ? std::nullopt : std::optional(*found);
    }
    case Kind::callable:
      return name == "name" && value.callable().is_macro ? std::optional(Value(value.callable().name)) : std::nullopt;
    default:
      return std::nullopt;
  }
}

std::string owner(const Value& value) {
  return value.is_none() ? "None" : type_name(value) + " object";
}

} // namespace

Value get_attribute(const Value& value, const std::string& name, Budget& budget) {
  value.require_defined();
  if (auto found = find_attribute(value, name, budget)) {
    return *std::move(found);
  }
  if (auto found = find_item(value, name, budget)) {
    return *std::move(found);
  }
  return Value::undefined(concat('\'', owner(value), "' has no attribute '", name, '\''));
}

Value get_item(const Value& value, const Value& key, Budget& budget) {
  if (auto found = find_item(value, key, budget)) {
    return *std::move(found);
  }
  if (key.is_text()) {
    if (auto found = find_attribute(value, key.text(), budget)) {
      return *std::move(found);
    }
    return Value::undefined(concat('\'', owner(value), "' has no attribute '", key.text(), '\''));
  }
  return Value::undefined(concat(owner(value), " has no element ", repr(key, budget)));
}

Value get_path(const Value& value, const Value& path, Budget& budget, const Value* instead) {
  if (path.is_none()) {
    return value;
  }
  Value found = value;
  const auto step = [&](const Value& key) {
    found = get_item(found, key, budget);
    if (instead != nullptr && found.is_undefined()) {
      found = *instead;
    }
  };
  if (!path.is_text()) {
    step(path);
    return found;
  }
  for (const std::string& part : split(path.text(), '.')) {
    int64_t index = 0;
    const auto result = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index =
        !part.empty() && part.front() != '-' && result.ec == std::errc() && result.ptr == part.data() + part.size();
    step(is_index ? Value(index) : Value(part));
  }
  return found;
}

} // namespace trireme::chat
