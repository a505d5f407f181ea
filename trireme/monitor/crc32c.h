#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::monitor {

/// Computes CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4) of the bytes. Cost: one table look-up per byte,
/// meant for small records.
uint32_t crc32c(std::string_view bytes);

/// Computes crc32c() as TFRecord files store it: rotated right by 15 bits plus a constant, because a CRC
/// over bytes that contain their own CRC is a poor check.
uint32_t masked_crc32c(std::string_view bytes);

} // namespace trireme::monitor
