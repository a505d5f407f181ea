#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace trireme::tokenizer {

// GPT-2's alphabet of bytes: printable characters of Latin-1 stand for their own byte, the other 68 bytes for U+0100,
// U+0101 and so on, in order. A space is U+0120.

/// Appends the characters of the bytes.
void append_byte_chars(std::string& out, std::string_view bytes);

/// The bytes of characters of the alphabet; none if `chars` has another character.
std::optional<std::string> bytes_of_chars(std::string_view chars);

} // namespace trireme::tokenizer
