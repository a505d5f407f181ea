#pragma once

#include <string>
#include <string_view>

namespace trireme::data {

/// "gzip", "bzip2", "xz", "zstd", "zip" or "7z", by the first bytes of a file; "" for anything else.
std::string_view packing_of(std::string_view head);

/// `content`, unpacked if it is gzip (members are concatenated). Errors: InputError naming `source` for truncated or
/// damaged gzip, and for other packings.
std::string unpack(std::string content, const std::string& source);

} // namespace trireme::data
