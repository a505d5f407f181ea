#include <trireme/memory/offload/host_store.h>

#include <trireme/device/stream.h>
#include <trireme/memory/offload/ratio.h>
#include <trireme/shards/bucket/pinned_blocks.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme::offload {
namespace {

int64_t bytes_of(int64_t numel, at::ScalarType type) {
  return bucket::pinned_piece(numel * static_cast<int64_t>(c10::elementSize(type)));
}

/// Cuts arrays from blocks of memory.
class Blocks {
 public:
  Blocks(int64_t all_bytes, at::DeviceType pinned_for) : left_(all_bytes), pinned_for_(pinned_for) {}

  at::Tensor take(int64_t numel, at::ScalarType type) {
    const int64_t bytes = bytes_of(numel, type);
    if (!block_.defined() || end_ + bytes > block_.numel()) {
      block_ = device::pinned_host(bucket::pinned_block(bytes, left_), at::kByte, pinned_for_);
      end_ = 0;
    }
    const int64_t begin = std::exchange(end_, end_ + bytes);
    left_ -= bytes;
    return block_.slice(0, begin, begin + numel * static_cast<int64_t>(c10::elementSize(type))).view(type);
  }

 private:
  int64_t left_;
  at::DeviceType pinned_for_;
  at::Tensor block_;
  int64_t end_ = 0;
};

class HostStore final : public bucket::KeptStore {
 public:
  explicit HostStore(bool pinned) : pinned_(pinned) {}

  std::vector<bool> on_host(const std::vector<int64_t>& numel, at::Device) override {
    return std::vector<bool>(numel.size(), true);
  }

 private:
  Buckets make(const std::vector<bucket::StoredArray>& arrays, at::Device device) override {
    int64_t all = 0;
    for (const bucket::StoredArray& array : arrays) {
      all = std::accumulate(array.numel.begin(), array.numel.end(), all,
                            [&](int64_t sum, int64_t numel) { return sum + bytes_of(numel, array.type); });
    }
    Blocks blocks(all, pinned_ ? device.type() : at::kCPU);
    Buckets buckets(arrays.front().numel.size());
    for (size_t b = 0; b < buckets.size(); ++b) {
      for (const bucket::StoredArray& array : arrays) {
        buckets[b].push_back(blocks.take(array.numel[b], array.type).fill_(array.initial));
      }
    }
    return buckets;
  }

  bool pinned_;
};

class PartialStore : public bucket::StateStore {
 public:
  PartialStore(std::unique_ptr<bucket::StateStore> moved, double ratio)
      : moved_(std::move(moved)),
        rest_(bucket::make_memory_store([](int64_t numel, at::ScalarType type, at::Device device) {
          return at::zeros({numel}, at::TensorOptions(type).device(device));
        })),
        ratio_(ratio) {}

  std::vector<bool> on_host(const std::vector<int64_t>& numel, at::Device device) override {
    std::vector<bool> there = moved_->on_host(numel, device);
    next_ = moves(numel);
    for (size_t b = 0; b < there.size(); ++b) {
      there[b] = there[b] && next_[b];
    }
    return there;
  }
  int64_t add(const std::vector<bucket::StoredArray>& arrays, at::Device device) override {
    const size_t buckets = arrays.front().numel.size();
    Buffer& buffer = buffers_.emplace_back();
    buffer.moved = device.is_cpu() ? std::vector<bool>(buckets, true) : next_;
    std::vector<bucket::StoredArray> there = arrays;
    std::vector<bucket::StoredArray> here = arrays;
    for (size_t i = 0; i < arrays.size(); ++i) {
      for (size_t b = 0; b < buckets; ++b) {
        (buffer.moved[b] ? here : there)[i].numel[b] = 0;
      }
    }
    buffer.there = moved_->add(there, device);
    buffer.here = rest_->add(here, device);
    return std::ssize(buffers_) - 1;
  }
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override {
    const auto [store, number] = of(buffer, bucket);
    return store->acquire(number, bucket);
  }
  void release(int64_t buffer, int64_t bucket, bool modified) override {
    const auto [store, number] = of(buffer, bucket);
    store->release(number, bucket, modified);
  }
  int64_t ahead() const override { return moved_->ahead(); }
  void prefetch(int64_t buffer, int64_t bucket) override {
    const auto [store, number] = of(buffer, bucket);
    store->prefetch(number, bucket);
  }
  bool keep_until(int64_t buffer, int64_t bucket, std::shared_ptr<const device::Event> done) override {
    const auto [store, number] = of(buffer, bucket);
    return store->keep_until(number, bucket, std::move(done));
  }

 private:
  struct Buffer {
    std::vector<bool> moved;
    int64_t there = 0; // its buffer numbers in the two stores
    int64_t here = 0;
  };

  std::vector<bool> moves(const std::vector<int64_t>& numel) const {
    const int64_t all = std::accumulate(numel.begin(), numel.end(), int64_t{0});
    std::vector<bool> moved;
    int64_t begin = 0;
    for (const int64_t one : numel) {
      moved.push_back(is_moved(begin, begin + one, all, ratio_));
      begin += one;
    }
    return moved;
  }
  std::pair<bucket::StateStore*, int64_t> of(int64_t buffer, int64_t bucket) const {
    const Buffer& one = buffers_[buffer];
    return one.moved[bucket] ? std::pair(moved_.get(), one.there) : std::pair(rest_.get(), one.here);
  }

  std::unique_ptr<bucket::StateStore> moved_;
  std::unique_ptr<bucket::StateStore> rest_;
  double ratio_;
  std::vector<bool> next_; // which buckets of the next added buffer are moved
  std::vector<Buffer> buffers_;
};

} // namespace

std::unique_ptr<bucket::StateStore> make_host_store(bool pinned) {
  return std::make_unique<HostStore>(pinned);
}

std::unique_ptr<bucket::StateStore> make_partial_store(std::unique_ptr<bucket::StateStore> moved, double ratio) {
  return std::make_unique<PartialStore>(std::move(moved), ratio);
}

} // namespace trireme::offload
