#include <trireme/shards/data_parallel/bucket_order.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace trireme::parallel {
namespace {

// Index in the model of the bucket's first parameter, whose gradient is expected last.
int64_t last_expected(const bucket::FlatLayout& layout, const bucket::Bucket& bucket) {
  int64_t place = std::numeric_limits<int64_t>::max();
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    place = std::min(place, layout.tensors()[layout.slots()[s].tensor].place);
  }
  return place;
}

} // namespace

std::vector<BucketPlace> bucket_order(const std::vector<bucket::FlatParameters*>& buffers) {
  std::vector<BucketPlace> order;
  std::vector<int64_t> next(buffers.size(), 0);
  for (;;) {
    std::optional<BucketPlace> first;
    int64_t first_place = -1;
    for (size_t b = 0; b < buffers.size(); ++b) {
      const bucket::FlatLayout& layout = buffers[b]->layout();
      if (next[b] == std::ssize(layout.buckets())) {
        continue;
      }
      const int64_t place = last_expected(layout, layout.buckets()[next[b]]);
      if (place > first_place) {
        first = BucketPlace{b, next[b]};
        first_place = place;
      }
    }
    if (!first) {
      return order;
    }
    ++next[first->buffer];
    order.push_back(*first);
  }
}

} // namespace trireme::parallel
