#pragma once

#include <cstdint>
#include <string>

namespace trireme::monitor {

/// The peak resident memory of this process (VmHWM) in bytes; 0 if the system does not report it.
int64_t peak_rss_bytes();
/// The current resident memory of this process (VmRSS) in bytes; 0 if the system does not report it.
int64_t current_rss_bytes();
/// The same without shared memory (RssAnon + RssFile). Cost: some 20 microseconds.
int64_t current_private_bytes();

/// Seconds since 1970, with fractions.
double unix_seconds();
/// Seconds of a monotonic clock; only differences have a meaning.
double monotonic_seconds();
/// "2026-11-21 09:23 UTC".
std::string format_utc(double unix_seconds);

/// The machine's name, "localhost" when it has none.
std::string host_name();

} // namespace trireme::monitor
