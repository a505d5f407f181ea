#include <trireme/extensions/averaging/outer_optimizer.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::parallel {

void OuterOptimizer::attach(const std::vector<bucket::FlatParameters*>& buffers) {
  buffers_ = buffers;
  for (const bucket::FlatParameters* const buffer : buffers_) {
    std::vector<BucketState>& parts = parts_.emplace_back();
    for (const bucket::Bucket& bucket : buffer->layout().buckets()) {
      const at::Tensor zeros =
          torch::zeros({bucket.numel() / ranks_.size()}, at::TensorOptions(torch::kFloat32).device(buffer->device()));
      parts.push_back({torch::empty_like(zeros), zeros});
    }
  }
}

void OuterOptimizer::begin_round() {
  for (std::vector<BucketState>& parts : parts_) {
    for (BucketState& part : parts) {
      part.has_start = false;
    }
  }
}

at::Tensor OuterOptimizer::part_of(const at::Tensor& parameters) const {
  const int64_t numel = parameters.numel() / ranks_.size();
  return parameters.slice(0, ranks_.rank() * numel, (ranks_.rank() + 1) * numel);
}

void OuterOptimizer::keep_start(int64_t buffer, int64_t bucket, const at::Tensor& parameters) {
  BucketState& part = parts_[buffer][bucket];
  if (!std::exchange(part.has_start, true)) {
    part.start.copy_(part_of(parameters));
  }
}

void OuterOptimizer::take(int64_t buffer, int64_t bucket, const std::vector<at::Tensor>& values) {
  BucketState& part = parts_[buffer][bucket];
  part.start.copy_(values[0]);
  part.momentum.copy_(values[1]);
  part.has_start = true;
}

void OuterOptimizer::step(int64_t buffer, int64_t bucket, at::Tensor part, double lr) {
  const torch::NoGradGuard no_grad;
  const auto& [start, momentum, has_start] = parts_[buffer][bucket];
  const at::Tensor moved = start - part;
  if (options_.outer == AveragingOptions::Outer::nesterov) {
    momentum.mul_(options_.outer_momentum).add_(moved);
    part.copy_(start).sub_(moved.add(momentum, options_.outer_momentum), options_.outer_lr);
  } else if (lr > 0) {
    momentum.mul_(options_.outer_momentum).add_(moved, 1 / lr);
    part.copy_(start).sub_(momentum, options_.outer_lr * lr);
  }
}

void OuterOptimizer::reset() {
  for (std::vector<BucketState>& parts : parts_) {
    for (BucketState& part : parts) {
      part.momentum.zero_();
    }
  }
  begin_round();
}

void OuterOptimizer::for_each_state(const SyncState::Visit& visit) {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const bucket::FlatLayout& layout = buffers_[b]->layout();
    for (size_t k = 0; k < layout.buckets().size(); ++k) {
      const bucket::Bucket& bucket = layout.buckets()[k];
      const bucket::Range mine = bucket::shard_of(bucket, ranks_.rank(), ranks_.size());
      for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
        const bucket::Slot& slot = layout.slots()[s];
        const int64_t begin = std::max(slot.begin, mine.begin);
        const int64_t end = std::min(slot.end, mine.end);
        if (begin < end) {
          visit("outer_momentum", layout.tensors()[slot.tensor], begin - slot.begin,
                parts_[b][k].momentum.slice(0, begin - mine.begin, end - mine.begin));
        }
      }
    }
  }
}

} // namespace trireme::parallel
