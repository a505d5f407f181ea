#include <trireme/shards/bucket/gradient_shards.h>

#include <trireme/shards/bucket/chunks.h>
#include <trireme/shards/bucket/state_store.h>

#include <ATen/ops/cat.h>
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
    std::vector<std::string> names;
    for (int64_t b = 0; b < std::ssize(layout_.buckets()); ++b) {
      first_.push_back(std::ssize(chunks_));
      for (const Range& range : chunks_of(layout_, b, plan_.mine(b), store_->chunk_elements())) {
        chunks_.push_back({b, range});
        shards.numel.push_back(range.numel());
        names.push_back(layout_.tensors()[layout_.slots()[layout_.buckets()[b].first_slot].tensor].name);
      }
    }
    first_.push_back(std::ssize(chunks_));
    in_store_ = store_->add({shards}, device);
    store_->name_buckets(in_store_, std::move(names));
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
    memory = at::Tensor(); // not reused for the next bucket while it is copied
    return;
  }
  const auto keep = [&](at::Tensor kept, const at::Tensor& values) {
    if (begun_[b]) {
      kept.add_(values);
    } else {
      kept.copy_(values);
    }
  };
  if (store_) {
    for (int64_t chunk = first_[b]; chunk < first_[b + 1]; ++chunk) {
      store_->use(in_store_, chunk, true, [&](const std::vector<at::Tensor>& arrays) {
        // Buckets fill in this order; the last is followed by the first, of the next micro-batch or of the step.
        for (int64_t k = 1; k <= std::min(store_->ahead(), std::ssize(chunks_) - 1); ++k) {
          prefetch_chunk((chunk + k) % std::ssize(chunks_));
        }
        const Range& range = chunks_[chunk].range;
        keep(arrays.front(), reduced.slice(0, range.begin - mine.begin, range.end - mine.begin));
      });
    }
  } else {
    take_memory();
    keep(owned(b, mine), reduced);
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
  if (!store_) {
    const int64_t offset = offset_[b] - plan_.mine(b).begin;
    return shard_.slice(0, offset + range.begin, offset + range.end);
  }
  std::vector<at::Tensor> parts;
  for (int64_t chunk = first_[b]; chunk < first_[b + 1]; ++chunk) {
    const Range& own = chunks_[chunk].range;
    const bool is_last = chunk + 1 == first_[b + 1];
    if (own.end <= range.begin && !is_last) {
      continue;
    }
    store_->use(in_store_, chunk, false, [&](const std::vector<at::Tensor>& arrays) {
      for (int64_t next = chunk + 1; next < std::min(chunk + 1 + store_->ahead(), first_[b + 1]); ++next) {
        store_->prefetch(in_store_, next);
      }
      parts.push_back(arrays.front().slice(0, std::max(range.begin, own.begin) - own.begin,
                                           std::min(range.end, own.end) - own.begin));
    });
    if (range.end <= own.end) {
      break;
    }
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

int64_t GradientShards::chunk_end(int64_t b, int64_t at) const {
  if (!store_) {
    return plan_.mine(b).end;
  }
  int64_t chunk = first_[b];
  while (chunks_[chunk].range.end <= at && chunk + 1 < first_[b + 1]) {
    ++chunk;
  }
  return chunks_[chunk].range.end;
}

void GradientShards::start_over() {
  for (int64_t chunk = 0; chunk < std::ssize(chunks_); ++chunk) {
    if (begun_[chunks_[chunk].bucket]) {
      store_->forget(in_store_, chunk);
    }
  }
  std::fill(begun_.begin(), begun_.end(), false);
}

void GradientShards::prefetch_chunk(int64_t chunk) {
  if (begun_[chunks_[chunk].bucket]) {
    store_->prefetch(in_store_, chunk);
  }
}

void GradientShards::prefetch(int64_t b) {
  if (store_) {
    prefetch_chunk(first_[b]);
  }
}

} // namespace trireme::bucket
