#include <trireme/bucket/gradient_shards.h>

#include <trireme/bucket/state_store.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::bucket {

void clear_gaps(const FlatLayout& layout, int64_t bucket, const at::Tensor& memory) {
  const torch::NoGradGuard no_grad;
  const Bucket& whole = layout.buckets()[bucket];
  int64_t end = whole.begin;
  for (int64_t s = whole.first_slot; s < whole.last_slot; ++s) {
    const Slot& slot = layout.slots()[s];
    memory.slice(0, end - whole.begin, slot.begin - whole.begin).zero_();
    end = slot.end;
  }
  memory.slice(0, end - whole.begin, whole.numel()).zero_();
}

GradientShards::GradientShards(const FlatLayout& layout, const ShardPlan& plan, at::ScalarType type, Allocate allocate,
                               std::shared_ptr<MemoryPool> pool, std::shared_ptr<StateStore> store, at::Device device)
    : layout_(layout),
      plan_(plan),
      type_(type),
      allocate_(std::move(allocate)),
      pool_(std::move(pool)),
      store_(std::move(store)),
      begun_(layout.buckets().size(), false),
      under_way_(layout.buckets().size()) {
  if (store_) {
    StoredArray shards{type_, 0, {}};
    for (int64_t b = 0; b < std::ssize(layout_.buckets()); ++b) {
      shards.numel.push_back(plan_.mine(b).numel());
    }
    in_store_ = store_->add({shards}, device);
    store_->name_buckets(in_store_, layout_.first_names());
  }
}

at::Tensor GradientShards::bucket(int64_t b) {
  const Bucket& bucket = layout_.buckets()[b];
  if (under_way_[b].defined()) {
    return under_way_[b].slice(0, 0, bucket.numel());
  }
  under_way_[b] = pool_->take(bucket.numel(), type_);
  at::Tensor memory = under_way_[b].slice(0, 0, bucket.numel());
  clear_gaps(layout_, b, memory);
  return memory;
}

void GradientShards::accumulate(int64_t b) {
  at::Tensor& memory = under_way_[b];
  if (!memory.defined()) {
    return;
  }
  const torch::NoGradGuard no_grad;
  const Range mine = plan_.mine(b);
  const int64_t begin = layout_.buckets()[b].begin;
  const at::Tensor reduced = memory.slice(0, mine.begin - begin, mine.end - begin);
  if (on_host(b)) {
    host_->send(b, reduced, begun_[b]);
    begun_[b] = true;
    memory = at::Tensor(); // not lent to the next bucket while it is copied
    return;
  }
  const auto keep = [&](at::Tensor kept) {
    if (begun_[b]) {
      kept.add_(reduced);
    } else {
      kept.copy_(reduced);
    }
  };
  if (store_) {
    store_->use(in_store_, b, true, [&](const std::vector<at::Tensor>& arrays) {
      for (int64_t k = 1; k <= std::min(store_->ahead(), std::ssize(begun_) - 1); ++k) {
        prefetch(
            (b + k) %
            std::ssize(
                begun_)); // buckets are full in this order; after the last the next micro-batch's first, or the step's
      }
      keep(arrays.front());
    });
  } else {
    take_memory();
    keep(owned(b, mine));
  }
  begun_[b] = true;
  pool_->give_back(std::move(memory));
  memory = at::Tensor();
}

void GradientShards::take_memory() {
  if (shard_.defined()) {
    return;
  }
  int64_t numel = 0;
  for (int64_t bucket = 0; bucket < std::ssize(begun_); ++bucket) {
    offset_.push_back(numel);
    numel += on_host(bucket) ? 0 : plan_.mine(bucket).numel();
  }
  shard_ = allocate_(numel, type_);
}

at::Tensor GradientShards::owned(int64_t b, const Range& range) const {
  if (store_) {
    const int64_t begin = plan_.mine(b).begin;
    at::Tensor values;
    store_->use(in_store_, b, false, [&](const std::vector<at::Tensor>& arrays) {
      values = arrays.front().slice(0, range.begin - begin, range.end - begin);
    });
    return values;
  }
  const int64_t offset = offset_[b] - plan_.mine(b).begin;
  return shard_.slice(0, offset + range.begin, offset + range.end);
}

void GradientShards::start_over() {
  for (int64_t b = 0; store_ && b < std::ssize(begun_); ++b) {
    if (begun_[b]) {
      store_->forget(in_store_, b);
    }
  }
  std::fill(begun_.begin(), begun_.end(), false);
}

void GradientShards::prefetch(int64_t b) {
  if (store_ && begun_[b]) {
    store_->prefetch(in_store_, b);
  }
}

} // namespace trireme::bucket
