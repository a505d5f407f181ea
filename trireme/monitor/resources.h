#pragma once

#include <cstdint>
#include <string>

namespace trireme::monitor {

/// The largest resident memory of this process so far (VmHWM), bytes; 0 if the system does not say.
int64_t peak_rss_bytes();
/// The resident memory of this process now (VmRSS), bytes; 0 where the system does not say.
int64_t current_rss_bytes();
/// The same without shared memory (RssAnon + RssFile). Cost: some 20 microseconds.
int64_t current_private_bytes();

/// Seconds since 1970, with fractions.
double unix_seconds();
/// Seconds of a clock that never jumps; only differences mean something.
double monotonic_seconds();
/// "2026-11-21 09:23 UTC".
std::string format_utc(double unix_seconds);

/// The machine's name, "localhost" when it has none.
std::string host_name();

} // namespace trireme::monitor
