#pragma once

#include <trireme/chat/value.h>

#include <optional>
#include <string>

// Attributes, items and methods, as Jinja's immutable sandbox gives them: undefined if there is none, and for methods
// that change a list or a dict. Errors: TemplateError for those of an undefined value.
namespace trireme::chat {

/// value.name: the attribute or method, or else the item.
Value get_attribute(const Value& value, const std::string& name, Budget& budget);
/// value[key]: the item, or else the attribute or method.
Value get_item(const Value& value, const Value& key, Budget& budget);
/// The value of a dotted name such as "function.name", or of an index, as filters take them.
/// `instead`: what takes the place of an undefined part; nullptr: none.
Value get_path(const Value& value, const Value& path, Budget& budget, const Value* instead = nullptr);

/// A method of a text; none: there is no such method. `name` is one of Python's str.
std::optional<Value> find_text_method(const Value& value, const std::string& name, Budget& budget);

} // namespace trireme::chat
