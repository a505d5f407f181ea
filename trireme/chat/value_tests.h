#pragma once

#include <trireme/chat/value.h>

#include <string>
#include <string_view>
#include <vector>

// Jinja's tests, behind `is`.
namespace trireme::chat {

bool is_value_test(std::string_view name);
std::vector<std::string> value_test_names();

/// Errors: TemplateError for an unknown test, with those that are supported, and as the test's own in Jinja.
bool apply_value_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);

} // namespace trireme::chat
