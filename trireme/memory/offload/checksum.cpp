#include <trireme/memory/offload/checksum.h>

#include <ATen/Parallel.h>

#include <xxhash.h>

#include <algorithm>
#include <vector>

namespace trireme::offload {

uint64_t checksum(const void* data, size_t bytes) {
  constexpr int64_t kPiece = 1 << 20;
  const auto size = static_cast<int64_t>(bytes);
  const auto* const first = static_cast<const char*>(data);
  std::vector<uint64_t> sums(static_cast<size_t>((size + kPiece - 1) / kPiece));
  at::parallel_for(0, std::ssize(sums), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sums[static_cast<size_t>(i)] =
          XXH3_64bits(first + i * kPiece, static_cast<size_t>(std::min(kPiece, size - i * kPiece)));
    }
  });
  return XXH3_64bits(sums.data(), sums.size() * sizeof(uint64_t));
}

} // namespace trireme::offload
