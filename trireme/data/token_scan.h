#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace trireme::data {

/// The largest of little-endian tokens of `token_bytes` (2 or 4) each; 0 for none. `bytes` may have any alignment.
/// Cost: about one read of them.
int64_t largest_token(std::span<const unsigned char> bytes, int64_t token_bytes);

/// Suggests the bytes per token of a file from its beginning: 4 or 8, else 2. Reads 16-bit tokens. Those that would
/// be the upper halves of wider ones must all be below 16 (ids up to a million). At least 32 of the others must be
/// larger than all of them. The false positive rate is about 1 in 2^32. Ignores the length: a file may be
/// truncated.
int64_t suggested_token_bytes(std::span<const unsigned char> beginning);

} // namespace trireme::data
