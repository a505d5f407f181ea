#include <trireme/optim/device_kernels.h>
#include <trireme/optim/flat_optimizer.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::optim {

at::Tensor FlatOptimizer::squared_grad_norm() const {
  at::Tensor sum = torch::zeros({1}, at::TensorOptions(torch::kFloat64).device(device_));
  for (const Shard& shard : shards_) {
    for (int64_t b = 0; b < shard.buckets() && !shard.buffer->is_repeated(); ++b) {
      const bool was_added = host_ && host_->add_left_norm(&shard - shards_.data(), b, sum);
      // Prefetches the next bucket; after the norm the first is needed again, by its step.
      shard.buffer->prefetch_grad(was_added ? 0 : (b + 1) % shard.buckets());
      if (!was_added) {
        add_squared_norm_of(shard, b, shard.buffer->plan().mine(b), sum);
      }
    }
  }
  return sum;
}

at::Tensor FlatOptimizer::own_squared_grad_norm(
    const std::function<double(const bucket::FlatParameters&)>& factor) const {
  at::Tensor sum = torch::zeros({1}, at::TensorOptions(torch::kFloat64).device(device_));
  for (const Shard& shard : shards_) {
    const at::Tensor of_buffer = torch::zeros_like(sum);
    for (int64_t b = 0; b < shard.buckets(); ++b) {
      const bucket::Bucket& whole = shard.buffer->layout().buckets()[b];
      add_squared_norm_of(shard, b, {whole.begin, whole.end}, of_buffer);
    }
    sum.add_(of_buffer, factor(*shard.buffer));
  }
  return sum;
}

// The parts of the range that count in the norm; some may be empty.
std::vector<bucket::Range> FlatOptimizer::counted(const Shard& shard, const bucket::Range& range) {
  std::vector<bucket::Range> pieces;
  int64_t begin = range.begin;
  for (const bucket::Slot& slot : shard.uncounted) {
    if (slot.begin < range.end && slot.end > begin) {
      pieces.push_back({begin, std::max(begin, slot.begin)});
      begin = std::min(range.end, slot.end);
    }
  }
  pieces.push_back({begin, range.end});
  return pieces;
}

// Adds the range's blocks one after another, however a store cuts it: full blocks of a chunk in one call, a block that
// spans two chunks as a copy.
void FlatOptimizer::add_squared_norm_of(const Shard& shard, int64_t bucket, const bucket::Range& range,
                                        const at::Tensor& sum) {
  for (const bucket::Range& piece : counted(shard, range)) {
    if (shard.buffer->grad_chunk_end(bucket, piece.begin) >= piece.end) {
      add_squared_norm(shard.buffer->owned_grad(bucket, piece), sum);
      continue;
    }
    double of_piece = 0;
    for (int64_t begin = piece.begin, end = begin; begin < piece.end; begin = end) {
      end = std::min(piece.end, shard.buffer->grad_chunk_end(bucket, begin));
      if (end < piece.end) {
        end = std::min(piece.end, begin + std::max(kBlock, (end - begin) / kBlock * kBlock));
      }
      for (const double of_block : squared_norms(shard.buffer->owned_grad(bucket, {begin, end}))) {
        of_piece += of_block;
      }
    }
    at::Tensor(sum).add_(of_piece);
  }
}

} // namespace trireme::optim
