#pragma once

#include <string>
#include <string_view>

namespace trireme {

/// The content of a text file as UTF-8, without a byte order mark. Bytes that are not valid UTF-8 stay.
/// Cost: one pass. Errors: InputError of `part` naming `source`, with a command that converts it, for UTF-16 and UTF-32
/// and for any content that is NUL in 1 of 100 bytes.
std::string plain_text(std::string_view part, const std::string& source, std::string content);

} // namespace trireme
