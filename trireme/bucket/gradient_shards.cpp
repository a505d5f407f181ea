#include <trireme/bucket/gradient_shards.h>

#include <torch/torch.h>

#include <algorithm>

namespace trireme::bucket {
namespace {

/// Memory that waits for its next bucket; more than this goes back.
constexpr size_t kSpare = 2;

} // namespace

GradientShards::GradientShards(const FlatLayout& layout, const ShardPlan& plan, at::ScalarType type, Allocate allocate)
    : layout_(layout), plan_(plan), type_(type), allocate_(std::move(allocate)), shard_(allocate_(plan_.state_numel(), type_).zero_()),
      begun_(layout.buckets().size(), false), under_way_(layout.buckets().size()) {}

at::Tensor GradientShards::bucket(int64_t b) {
  const Bucket& bucket = layout_.buckets()[b];
  if (under_way_[b].defined()) {
    return under_way_[b].slice(0, 0, bucket.numel());
  }
  const torch::NoGradGuard no_grad;
  const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const at::Tensor& spare) { return spare.numel() >= bucket.numel(); });
  under_way_[b] = fits == spare_.end() ? allocate_(bucket.numel(), type_) : *fits;
  if (fits != spare_.end()) {
    spare_.erase(fits);
  }
  at::Tensor memory = under_way_[b].slice(0, 0, bucket.numel());
  int64_t end = bucket.begin;
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    const Slot& slot = layout_.slots()[s];
    memory.slice(0, end - bucket.begin, slot.begin - bucket.begin).zero_();
    end = slot.end;
  }
  memory.slice(0, end - bucket.begin, bucket.numel()).zero_();
  return memory;
}

void GradientShards::settle(int64_t b) {
  at::Tensor& memory = under_way_[b];
  if (!memory.defined()) {
    return;
  }
  const torch::NoGradGuard no_grad;
  const Range mine = plan_.mine(b);
  const int64_t begin = layout_.buckets()[b].begin;
  const at::Tensor reduced = memory.slice(0, mine.begin - begin, mine.end - begin);
  at::Tensor kept = owned(b, mine);
  if (begun_[b]) {
    kept.add_(reduced);
  } else {
    kept.copy_(reduced);
  }
  begun_[b] = true;
  if (spare_.size() == kSpare) {
    // The largest are worth most: they fit every bucket.
    const auto smallest = std::min_element(spare_.begin(), spare_.end(), [](const at::Tensor& x, const at::Tensor& y) { return x.numel() < y.numel(); });
    spare_.erase(smallest);
  }
  spare_.push_back(std::move(memory));
  memory = at::Tensor();
}

at::Tensor GradientShards::owned(int64_t b, const Range& range) const {
  const int64_t offset = plan_.state_offset(b) - plan_.mine(b).begin;
  return shard_.slice(0, offset + range.begin, offset + range.end);
}

void GradientShards::start_over() {
  std::fill(begun_.begin(), begun_.end(), false);
}

} // namespace trireme::bucket
