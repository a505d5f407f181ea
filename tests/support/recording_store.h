#pragma once

#include <trireme/base/error.h>
#include <trireme/shards/bucket/state_store.h>

#include <ATen/ops/zeros.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

/// Memory, and a record of what is asked of it: "r2" for a bucket that is named ahead, "g2" when it is used. `name` of
/// a bucket, where not its number counts.
class RecordingStore : public bucket::StateStore {
 public:
  explicit RecordingStore(std::function<int64_t(int64_t bucket)> name = [](int64_t bucket) { return bucket; })
      : name_(std::move(name)) {}

  int64_t add(const std::vector<bucket::StoredArray>& arrays, at::Device device) override {
    return memory_->add(arrays, device);
  }
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override {
    note('g', bucket);
    return memory_->acquire(buffer, bucket);
  }
  void release(int64_t buffer, int64_t bucket, bool modified) override { memory_->release(buffer, bucket, modified); }
  void prefetch(int64_t, int64_t bucket) override { note('r', bucket); }
  int64_t ahead() const override { return ahead_; }
  /// What ahead() says; 1 at first.
  void name_ahead(int64_t buckets) { ahead_ = buckets; }
  /// What was asked since the last call.
  std::string take() { return std::exchange(asked_, ""); }

 private:
  void note(char what, int64_t bucket) { asked_ += concat(asked_.empty() ? "" : " ", what, name_(bucket)); }

  std::function<int64_t(int64_t bucket)> name_;
  std::unique_ptr<bucket::StateStore> memory_ = bucket::make_memory_store(
      [](int64_t numel, at::ScalarType type, at::Device) { return at::zeros({numel}, type); });
  std::string asked_;
  int64_t ahead_ = 1;
};

} // namespace trireme::test
