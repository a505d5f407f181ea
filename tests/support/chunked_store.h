#pragma once

#include <trireme/shards/bucket/chunks.h>
#include <trireme/shards/bucket/state_store.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace trireme::test {

/// Memory, in chunks as small as they can be.
class ChunkedStore final : public bucket::KeptStore {
 public:
  int64_t chunk_elements() const override { return bucket::kChunkAlignment; }
  /// Elements of the largest part that was added.
  int64_t most() const { return most_; }

 private:
  Buckets make(const std::vector<bucket::StoredArray>& arrays, at::Device) override {
    Buckets buckets(arrays.front().numel.size());
    for (const bucket::StoredArray& array : arrays) {
      for (size_t b = 0; b < buckets.size(); ++b) {
        buckets[b].push_back(at::empty({array.numel[b]}, array.type).fill_(array.initial));
        most_ = std::max(most_, array.numel[b]);
      }
    }
    return buckets;
  }

  int64_t most_ = 0;
};

} // namespace trireme::test
