#pragma once

#include <trireme/shards/bucket/state_store.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

/// Bytes of the tensors that stores of this process have given out and that somebody still holds, and the most at any
/// time.
struct LiveBytes {
  int64_t now = 0;
  int64_t peak = 0;
  /// Of all that the stores keep, and of their largest bucket.
  int64_t kept = 0;
  int64_t largest_bucket = 0;
  /// Buckets, and how often one was acquired.
  int64_t buckets = 0;
  int64_t acquired = 0;
};

/// Keeps buckets as strings; a tensor that it gave out counts until its last reference is gone.
class CountingStore : public bucket::StateStore {
 public:
  explicit CountingStore(std::shared_ptr<LiveBytes> live) : live_(std::move(live)) {}

  int64_t add(const std::vector<bucket::StoredArray>& arrays, at::Device) override {
    Buffer& buffer = buffers_.emplace_back(Buffer{arrays, {}});
    for (size_t bucket = 0; bucket < arrays.front().numel.size(); ++bucket) {
      int64_t bytes = 0;
      std::vector<std::string>& parts = buffer.parts.emplace_back();
      for (const bucket::StoredArray& array : arrays) {
        const at::Tensor part = at::full({array.numel[bucket]}, array.initial, array.type);
        parts.emplace_back(static_cast<const char*>(part.const_data_ptr()), part.nbytes());
        bytes += static_cast<int64_t>(part.nbytes());
      }
      ++live_->buckets;
      live_->kept += bytes;
      live_->largest_bucket = std::max(live_->largest_bucket, bytes);
    }
    return std::ssize(buffers_) - 1;
  }
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override {
    acquired_.clear();
    ++live_->acquired;
    for (size_t i = 0; i < buffers_[buffer].arrays.size(); ++i) {
      const std::string& kept = buffers_[buffer].parts[bucket][i];
      const auto bytes = static_cast<int64_t>(kept.size());
      auto memory = std::make_unique<char[]>(kept.size() + 1);
      std::memcpy(memory.get(), kept.data(), kept.size());
      live_->now += bytes;
      live_->peak = std::max(live_->peak, live_->now);
      const auto release = [live = live_, bytes](void* data) {
        live->now -= bytes;
        delete[] static_cast<char*>(data);
      };
      char* const data = memory.release();
      acquired_.push_back(at::from_blob(data, {buffers_[buffer].arrays[i].numel[bucket]}, release,
                                        at::TensorOptions(buffers_[buffer].arrays[i].type)));
    }
    return acquired_;
  }
  void release(int64_t buffer, int64_t bucket, bool modified) override {
    for (size_t i = 0; modified && i < acquired_.size(); ++i) {
      std::string& kept = buffers_[buffer].parts[bucket][i];
      std::memcpy(kept.data(), acquired_[i].const_data_ptr(), kept.size());
    }
    acquired_.clear();
  }
  void prefetch(int64_t, int64_t) override {}

 private:
  struct Buffer {
    std::vector<bucket::StoredArray> arrays;
    std::vector<std::vector<std::string>> parts; // by bucket and array
  };

  std::shared_ptr<LiveBytes> live_;
  std::vector<Buffer> buffers_;
  std::vector<at::Tensor> acquired_;
};

} // namespace trireme::test
