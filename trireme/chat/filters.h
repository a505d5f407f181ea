#pragma once

#include <trireme/chat/value.h>

#include <string>
#include <string_view>
#include <vector>

// Jinja's filters, with tojson as transformers has it. `safe` returns the text, because nothing is escaped by itself.
namespace trireme::chat {

bool is_filter(std::string_view name);
std::vector<std::string> filter_names();

/// Errors: TemplateError for an unknown filter, with those that are supported, and as the filter's own in Jinja.
/// Filters that are generators in Jinja return an iterator, which already has its elements.
Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments, Budget& budget);

using Filter = Value (*)(const Value& input, const Arguments& arguments, Budget& budget);
struct NamedFilter {
  std::string_view name;
  Filter filter;
};
/// Of one value (filters_of_values.cpp), and of many (filters_of_sequences.cpp).
std::vector<NamedFilter> value_filters();
std::vector<NamedFilter> sequence_filters();

} // namespace trireme::chat
