#include <trireme/shards/bucket/state_store.h>

#include <trireme/device/stream.h>

#include <ATen/ATen.h>

#include <numeric>
#include <utility>

namespace trireme::bucket {
namespace {

class MemoryStore final : public KeptStore {
 public:
  explicit MemoryStore(AllocateOn allocate) : allocate_(std::move(allocate)) {}

 private:
  Buckets make(const std::vector<StoredArray>& arrays, at::Device device) override {
    Buckets buckets;
    for (const StoredArray& array : arrays) {
      buckets.resize(array.numel.size());
      const at::Tensor whole =
          allocate_(std::accumulate(array.numel.begin(), array.numel.end(), int64_t{0}), array.type, device);
      if (array.initial != 0) {
        whole.fill_(array.initial);
      }
      int64_t begin = 0;
      for (size_t b = 0; b < buckets.size(); ++b) {
        buckets[b].push_back(whole.slice(0, begin, begin + array.numel[b]));
        begin += array.numel[b];
      }
    }
    return buckets;
  }

  AllocateOn allocate_;
};

} // namespace

std::vector<bool> StateStore::on_host(const std::vector<int64_t>&, at::Device) {
  return {};
}

bool StateStore::keep_until(int64_t, int64_t, std::shared_ptr<const device::Event>) {
  return false;
}

void StateStore::use(int64_t buffer, int64_t bucket, bool modifies,
                     const std::function<void(const std::vector<at::Tensor>&)>& f) {
  const std::vector<at::Tensor>& arrays = acquire(buffer, bucket);
  try {
    f(arrays);
  } catch (...) {
    release(buffer, bucket, modifies);
    throw;
  }
  release(buffer, bucket, modifies);
}

int64_t KeptStore::add(const std::vector<StoredArray>& arrays, at::Device device) {
  buffers_.push_back(make(arrays, device));
  return std::ssize(buffers_) - 1;
}

const std::vector<at::Tensor>& KeptStore::acquire(int64_t buffer, int64_t bucket) {
  return buffers_[buffer][bucket];
}

std::unique_ptr<StateStore> make_memory_store(AllocateOn allocate) {
  return std::make_unique<MemoryStore>(std::move(allocate));
}

} // namespace trireme::bucket
