#pragma once

#include <cstdint>

namespace trireme::aio {

/// Offsets, addresses and sizes of transfers are multiples of this number of bytes, the largest alignment that today's
/// disks need for direct transfers.
inline constexpr int64_t kAlignment = 4096;
constexpr int64_t round_up(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
/// Limits of Options: bytes of a block, requests (every io_uring has room for 32768) and threads.
inline constexpr int64_t kMostBlockBytes = int64_t{1} << 30;
inline constexpr int64_t kMostRequests = 4096;
inline constexpr int64_t kMostThreads = 256;

/// How files are read and written: section "aio" of the configuration.
struct Options {
  /// Bytes of one request to the system, a multiple of kAlignment. Larger transfers are cut into requests.
  int64_t block_size = 1 << 20;
  /// Requests in the system at a time.
  int64_t queue_depth = 8;
  /// Threads that transfer if io_uring is not used; at least 1.
  int64_t threads = 1;
  /// Submits requests one by one instead of as many as fit.
  bool single_submit = false;
  /// Waits for any finished request instead of for a full queue of them.
  bool overlap_events = true;
};

} // namespace trireme::aio
