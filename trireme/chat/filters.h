#pragma once

#include <trireme/chat/named.h>
#include <trireme/chat/value.h>

#include <string_view>

// Jinja's filters, with tojson as transformers has it. `safe` returns the text, because nothing is escaped.
namespace trireme::chat {

/// Errors: NotSupported for an unknown filter, with those that are supported, and as the filter's own in Jinja.
/// Filters that are generators in Jinja return an iterator, which already has its elements.
Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments, Budget& budget);

using Filter = Value (*)(const Value& input, const Arguments& arguments, Budget& budget);
/// Those of lists and dicts.
Named<Filter> sequence_filters();

} // namespace trireme::chat
