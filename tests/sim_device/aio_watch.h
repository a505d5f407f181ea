#pragma once

#include <cstdint>

/// What files are asked for by this process: the system's functions for it are ours in the program that has aio_watch.cpp, and call the system's.
namespace trireme::test {

struct AioSeen {
  int64_t largest_write = 0; ///< bytes of one pwrite()
  int64_t most_at_once = 0; ///< requests that were handed to an io_uring together
  bool overlaps = false; ///< some were handed over while others were in it
};

/// Begins anew. From then on an io_uring says of one request at a time that it is finished, however many are.
void watch_aio();
AioSeen aio_seen();

/// Whether this process may use io_uring, and the program was built with it. Starts no thread.
bool has_io_uring();

} // namespace trireme::test
