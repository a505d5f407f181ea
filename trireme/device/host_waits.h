#pragma once

#include <cstdint>

namespace trireme::device {

/// How often threads of this process have blocked until a device came past some work: each Event::synchronize(), and
/// with it each read_scalars(). Polling, as the threads of the staged backend do, is no wait, and what holds the host
/// in Work::wait() over it is not counted; what a loss function waits for by itself (item(), cpu()) is not seen here.
/// Any thread may ask.
int64_t host_waits();

/// Counts one; for code that blocks in another way.
void count_host_wait();

} // namespace trireme::device
