#include <trireme/data/dataset.h>

#include <trireme/base/hash.h>

#include <algorithm>
#include <numeric>

namespace trireme::data {

uint64_t joint_checksum(std::span<const uint64_t> checksums) {
  if (std::ranges::find(checksums, uint64_t{0}) != checksums.end()) {
    return 0;
  }
  return std::accumulate(checksums.begin(), checksums.end(), kFnv1aStart, fnv1a_step) | 1;
}

} // namespace trireme::data
