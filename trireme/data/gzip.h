#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::data {

/// Says whether the content begins like a gzip file.
bool is_gzip(std::string_view content);

/// Unpacks gzip (RFC 1952; several members as one) until the end or until `at_most` bytes are out.
/// The end's checksum is compared; NUL bytes after the last member are padding. Errors: InputError naming `source` for
/// a cut or damaged stream, and for anything else after it.
std::string gunzip(std::string_view content, size_t at_most, const std::string& source);

} // namespace trireme::data
