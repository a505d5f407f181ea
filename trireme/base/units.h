#pragma once

#include <concepts>
#include <cstdint>
#include <string>

namespace trireme {

/// "512 B", "26.2 MB", "1.50 GB": powers of 1000, three significant digits.
std::string format_bytes(double bytes);
/// "950 us", "41.2 ms", "3.20 s", "4 min 05 s", "2 h 03 min".
std::string format_seconds(double seconds);
/// "950", "12.3k", "4.02M": for tokens, parameters, samples.
std::string format_count(double count);

template <std::integral T>
std::string format_bytes(T bytes) {
  return format_bytes(static_cast<double>(bytes));
}
template <std::integral T>
std::string format_count(T count) {
  return format_count(static_cast<double>(count));
}

} // namespace trireme
