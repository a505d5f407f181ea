#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace trireme::checkpoint {

/// Deepest nesting of arrays and objects that is read.
inline constexpr size_t kMaxDepth = 100;

/// Parses JSON written by a program: one value, UTF-8, no key twice in an object, at most
/// 100 levels. JsonNode (base) also remembers positions, which costs too much for an index
/// of many thousand tensors.
/// Errors: InputError naming `source` and the byte or the key.
nlohmann::json parse_strict_json(std::string_view text, const std::string& source);

/// The reason in a message of nlohmann's parser, without its codes.
std::string json_reason(const nlohmann::json::exception& error);

} // namespace trireme::checkpoint
