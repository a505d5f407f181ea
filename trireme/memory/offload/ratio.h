#pragma once

#include <cstdint>

namespace trireme::offload {

/// Whether OptimizerOptions::ratio moves the bucket of elements [begin, end) of `all`: if its middle lies within this
/// share from the front.
constexpr bool is_moved(int64_t begin, int64_t end, int64_t all, double ratio) {
  return static_cast<double>(begin + end) / 2 < ratio * static_cast<double>(all);
}

} // namespace trireme::offload
