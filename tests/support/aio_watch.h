#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// What files are asked for by this process: the system's functions for it are ours in a program that links
/// trireme::aio_watch, and call the system's.
namespace trireme::test {

/// A call of pread() or pwrite() by a thread of aio.
struct AioCall {
  bool write;
  std::string file; ///< its name, without the folder
  int64_t offset;
};

struct AioSeen {
  std::vector<AioCall> calls; ///< in the order in which they began
  int64_t largest_write = 0;  ///< bytes of one pwrite()
  int64_t most_at_once = 0;   ///< requests that were handed to an io_uring together
  bool overlaps = false;      ///< some were handed over while others were in it
};

/// Begins anew. From then on an io_uring says of one request at a time that it is finished, however many are.
void watch_aio();
AioSeen aio_seen();

/// From now on a thread of aio that is about to read, or to write, waits until let_aio_go() has let so many of them go
/// as are before it and itself. Only without io_uring (TRIREME_AIO=threads). Who waits for what never goes is ended by
/// the test's deadline.
void hold_aio(bool reads, bool writes);
void let_aio_go(int64_t calls = 1);
/// Nothing waits any more.
void end_hold_of_aio();

/// Whether this process may use io_uring, and the program was built with it. Starts no thread.
bool has_io_uring();

} // namespace trireme::test
