#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace trireme::data {

/// The largest of little-endian tokens of `token_bytes` (2 or 4) each; 0 of none. `bytes` may lie at any address. Cost:
/// about that of reading them.
int64_t largest_token(std::span<const unsigned char> bytes, int64_t token_bytes);

/// Bytes of a token that the beginning of a file suggests: 4 or 8 if, read as 16-bit tokens, the values that would be
/// the upper halves of wider ones are all small (below 16, so that ids up to a million are known too) and 32 or more of
/// the others are larger than all of them, else 2. Where the large ones stand by chance, 32 of them stand so in one
/// file of 2^32. The length says nothing: a file may be cut off.
int64_t suggested_token_bytes(std::span<const unsigned char> beginning);

} // namespace trireme::data
