#include <trireme/shards/bucket/memory_pool.h>

#include <algorithm>
#include <numeric>

namespace trireme::bucket {
namespace {

bool is_smaller(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() < b.nbytes();
}

} // namespace

// A block several times too large is left for requests that need it.
at::Tensor MemoryPool::take(int64_t numel, at::ScalarType type) {
  const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const at::Tensor& spare) {
    return spare.scalar_type() == type && spare.numel() >= numel;
  });
  if (fits == spare_.end() || (fits->numel() > 4 * numel && fits->nbytes() > 1 << 20)) {
    return allocate_(numel, type);
  }
  at::Tensor found = std::move(*fits);
  spare_.erase(fits);
  return found;
}

void MemoryPool::give_back(at::Tensor memory) {
  spare_.insert(std::upper_bound(spare_.begin(), spare_.end(), memory, is_smaller), std::move(memory));
  const auto add = [](int64_t sum, const at::Tensor& piece) { return sum + static_cast<int64_t>(piece.nbytes()); };
  int64_t bytes = std::accumulate(spare_.begin(), spare_.end(), int64_t{0}, add);
  for (; bytes > spare_bytes_; spare_.pop_back()) {
    bytes -= static_cast<int64_t>(spare_.back().nbytes());
  }
}

} // namespace trireme::bucket
