#include <trireme/shards/zero/persistence.h>

#include <algorithm>

namespace trireme::zero {

std::vector<bool> are_persistent(const std::vector<int64_t>& sizes, const ZeroOptions& options) {
  std::vector<size_t> small;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < options.param_persistence_threshold) {
      small.push_back(i);
    }
  }
  std::stable_sort(small.begin(), small.end(), [&](size_t a, size_t b) { return sizes[a] < sizes[b]; });
  std::vector<bool> persistent(sizes.size(), false);
  int64_t together = 0;
  for (const size_t i : small) {
    together += sizes[i];
    if (together > options.model_persistence_threshold) {
      break;
    }
    persistent[i] = true;
  }
  return persistent;
}

} // namespace trireme::zero
