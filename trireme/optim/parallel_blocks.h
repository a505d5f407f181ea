#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace trireme::optim {

/// Elements of a block: threads get whole blocks, and a reduction has one partial result a block, so
/// neither depends on how many threads there are. 64 KiB of floats: small enough to share evenly.
inline constexpr int64_t kBlock = 16384;

/// Calls f(begin, end) for consecutive ranges of whole blocks that cover [0, n), on all threads.
template <class F>
void parallel_ranges(int64_t n, const F& f) {
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) { f(first * kBlock, std::min(last * kBlock, n)); });
}

} // namespace trireme::optim
