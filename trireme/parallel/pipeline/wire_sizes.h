#pragma once

#include <algorithm>
#include <cstdint>

/// Sizes of what stages send each other; no torch.
namespace trireme::pipeline {

inline constexpr int64_t kHeaderBytes = 64;
inline constexpr int64_t kAnnouncementBytes = 4096;

/// Each tensor of a message begins at a multiple of 64 bytes.
constexpr int64_t aligned(int64_t bytes) {
  return (bytes + kHeaderBytes - 1) / kHeaderBytes * kHeaderBytes;
}
/// Bytes of the memory that a message takes: it must hold an announcement too.
constexpr int64_t buffer_bytes(int64_t message_bytes) {
  return std::max(message_bytes, kAnnouncementBytes);
}

} // namespace trireme::pipeline
