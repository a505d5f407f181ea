#pragma once

#include <cstdint>

namespace trireme::aio {

/// Offsets in files, addresses and sizes of transfers are multiples of it, in bytes: what direct transfers ask for at
/// most on disks of today.
inline constexpr int64_t kAlignment = 4096;
constexpr int64_t round_up(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
/// The most that Options may say: bytes of a block, requests (an io_uring has room for 32768 everywhere) and threads.
inline constexpr int64_t kMostBlockBytes = int64_t{1} << 30;
inline constexpr int64_t kMostRequests = 4096;
inline constexpr int64_t kMostThreads = 256;

/// How files are read and written: the section "aio" of the configuration.
struct Options {
  /// Bytes of one request to the system, a multiple of kAlignment. A transfer is cut into so many requests as it needs.
  int64_t block_size = 1 << 20;
  /// Requests that are in the system at a time.
  int64_t queue_depth = 8;
  /// Threads that transfer where io_uring is not used; at least 1.
  int64_t threads = 1;
  /// Hands requests over one by one instead of as many as there is room for.
  bool single_submit = false;
  /// Waits for any request that is finished instead of for a whole queue of them.
  bool overlap_events = true;
};

} // namespace trireme::aio
