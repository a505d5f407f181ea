#include <trireme/memory/offload/disk_plan.h>

#include <trireme/memory/aio/memory.h>

namespace trireme::offload {
DiskPlan::DiskPlan(const std::vector<bucket::StoredArray>& arrays,
                   const std::function<bool(const Bucket& bucket)>& needs_place) {
  for (size_t b = 0; b < arrays.front().numel.size(); ++b) {
    Bucket& bucket = buckets.emplace_back();
    bucket.offset = bytes;
    for (const bucket::StoredArray& array : arrays) {
      bucket.begins.push_back(bucket.bytes);
      bucket.bytes += aio::round_up(array.numel[b] * static_cast<int64_t>(c10::elementSize(array.type)));
      bucket.elements += array.numel[b];
    }
    if (!needs_place(bucket)) {
      bucket.bytes = 0;
    }
    bytes += bucket.bytes;
  }
}

} // namespace trireme::offload
