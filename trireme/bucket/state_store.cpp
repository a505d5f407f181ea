#include <trireme/bucket/state_store.h>

#include <ATen/ATen.h>

#include <numeric>

namespace trireme::bucket {
namespace {

class MemoryStore : public StateStore {
 public:
  explicit MemoryStore(AllocateOn allocate) : allocate_(std::move(allocate)) {}

  int64_t add(const std::vector<StoredArray>& arrays, at::Device device) override {
    std::vector<std::vector<at::Tensor>>& buckets = buffers_.emplace_back();
    for (const StoredArray& array : arrays) {
      buckets.resize(array.numel.size());
      const at::Tensor whole = allocate_(std::accumulate(array.numel.begin(), array.numel.end(), int64_t{0}), array.type, device).fill_(array.initial);
      int64_t begin = 0;
      for (size_t b = 0; b < buckets.size(); ++b) {
        buckets[b].push_back(whole.slice(0, begin, begin + array.numel[b]));
        begin += array.numel[b];
      }
    }
    return std::ssize(buffers_) - 1;
  }
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override {
    return buffers_[buffer][bucket];
  }
  void release(int64_t, int64_t, bool) override {}
  void prefetch(int64_t, int64_t) override {}

 private:
  AllocateOn allocate_;
  std::vector<std::vector<std::vector<at::Tensor>>> buffers_; // by buffer, bucket and array
};

} // namespace

std::vector<bool> StateStore::on_host(const std::vector<int64_t>&, at::Device) {
  return {};
}

void StateStore::use(int64_t buffer, int64_t bucket, bool modifies, const std::function<void(const std::vector<at::Tensor>&)>& f) {
  const std::vector<at::Tensor>& arrays = acquire(buffer, bucket);
  try {
    f(arrays);
  } catch (...) {
    release(buffer, bucket, modifies);
    throw;
  }
  release(buffer, bucket, modifies);
}

std::unique_ptr<StateStore> make_memory_store(AllocateOn allocate) {
  return std::make_unique<MemoryStore>(std::move(allocate));
}

} // namespace trireme::bucket
