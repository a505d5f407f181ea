#pragma once

#include <cstdint>

namespace trireme::device {

/// How often threads of this process have blocked until a device finished some work: each Event::synchronize(), and so
/// each read_scalars(). Polling, as in the staged backend's threads, does not count, nor does a Work::wait() on it, nor
/// the waits of a loss function itself (item(), cpu()). Thread-safe.
int64_t host_waits();

/// Counts one wait; for code that blocks in another way.
void count_host_wait();

} // namespace trireme::device
