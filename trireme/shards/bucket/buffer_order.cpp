#include <trireme/shards/bucket/buffer_order.h>

#include <algorithm>
#include <numeric>

namespace trireme::bucket {

std::vector<int64_t> buffer_order(const std::vector<TensorInfo>& tensors) {
  std::vector<int64_t> order(tensors.size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return tensors[a].unit > tensors[b].unit; });
  return order;
}

} // namespace trireme::bucket
