#include <trireme/data/target_counts.h>

#include <ATen/ops/empty.h>

#include <algorithm>

namespace trireme::data {

int64_t count_targets(Batch& batch) {
  at::Tensor& target = batch.targets.at(0);
  const at::Tensor classes = target.contiguous();
  const auto* const begin = classes.const_data_ptr<int64_t>();
  const int64_t all = classes.numel();
  const int64_t counted = all - std::count(begin, begin + all, kIgnoredTarget);
  if (counted == 0 && all > 0) {
    target = classes.clone();
    *target.mutable_data_ptr<int64_t>() = 0;
  }
  return counted;
}

} // namespace trireme::data
