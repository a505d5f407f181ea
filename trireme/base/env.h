#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace trireme::env {

/// The variable's text; nullopt when unset or empty.
std::optional<std::string> text(const char* name);

/// The variable as a whole number. Throws InputError naming the variable when it is not one.
std::optional<int64_t> integer(const char* name);

/// "1", "true", "yes", "on" and their opposites; throws InputError on anything else.
bool flag(const char* name, bool default_value = false);

/// "2/4": index 2 of 4, counted from 0; nullopt when unset or empty. Throws InputError on anything else.
std::optional<std::pair<int, int>> place(const char* name);

} // namespace trireme::env
