#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::data {

/// True if the content begins like a gzip file.
bool is_gzip(std::string_view content);

/// Unpacks gzip (RFC 1952; concatenates members) until its end or until `at_most` bytes are out. Verifies the checksum
/// at the end; ignores NUL bytes after the last member as padding. Errors: InputError naming `source` for a truncated
/// or damaged stream, and for other data after it.
std::string gunzip(std::string_view content, size_t at_most, const std::string& source);

} // namespace trireme::data
