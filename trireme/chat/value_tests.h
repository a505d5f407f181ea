#pragma once

#include <trireme/chat/value.h>

#include <string_view>

// Jinja's tests, behind `is`.
namespace trireme::chat {

/// Errors: NotSupported for an unknown test, with those that are supported, and as the test's own in Jinja.
bool apply_value_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget);

} // namespace trireme::chat
