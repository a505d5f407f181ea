#pragma once

#include <trireme/chat/value.h>

#include <optional>
#include <string>
#include <vector>

// Attributes, items and methods, undefined if there is none. Errors: TemplateError for those of an undefined value,
// NotSupported for an attribute of `loop` that Trireme does not have.
namespace trireme::chat {

/// value.name: the attribute or method, or else the item.
Value get_attribute(const Value& value, const std::string& name, Budget& budget);
/// value[key]: the item, or else the attribute or method.
Value get_item(const Value& value, const Value& key, Budget& budget);
/// The value of a dotted name such as "function.name", or of an index, as filters take them.
Value get_path(const Value& value, const Value& path, Budget& budget);

/// A method of a text; none: there is no such method. `name` is one of Python's str.
std::optional<Value> find_text_method(const Value& value, const std::string& name, Budget& budget);

std::vector<std::string> text_method_names();
/// The methods of texts and dicts, for messages.
std::string supported_methods();

} // namespace trireme::chat
