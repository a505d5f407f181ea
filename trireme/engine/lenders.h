#pragma once

#include <trireme/checkpoint/lender.h>
#include <trireme/optim/flat_optimizer.h>

namespace trireme::engine {

/// Provides the tensors of one bucket's masters and states, as FlatOptimizer::state_buckets() lists them.
class StateLender final : public checkpoint::Lender {
 public:
  StateLender(optim::FlatOptimizer& optimizer, int64_t buffer, int64_t bucket)
      : optimizer_(optimizer), buffer_(buffer), bucket_(bucket) {}

  void lend(const Take& take) override {
    optimizer_.visit_states(
        buffer_, bucket_, [&](size_t number, const at::Tensor& values) { take(static_cast<int64_t>(number), values); },
        false);
  }
  void expect() override { optimizer_.prefetch_states(buffer_, bucket_); }
  std::optional<bucket::Extent> extent(int64_t i) override {
    return optimizer_.state_extent(buffer_, bucket_, static_cast<size_t>(i));
  }

 private:
  optim::FlatOptimizer& optimizer_;
  int64_t buffer_;
  int64_t bucket_;
};

/// Provides the tensors of one bucket of sharded parameters, as FlatParameters::sharded_pieces() lists them.
class ShardLender final : public checkpoint::Lender {
 public:
  ShardLender(const bucket::FlatParameters& parameters, int64_t bucket)
      : parameters_(parameters), bucket_(bucket), pieces_(parameters.sharded_pieces(bucket)) {}

  void lend(const Take& take) override {
    parameters_.visit_sharded(
        bucket_, [&](size_t number, const at::Tensor& values) { take(static_cast<int64_t>(number), values); }, false);
  }
  void expect() override { parameters_.prefetch_data(bucket_); }
  std::optional<bucket::Extent> extent(int64_t i) override {
    std::optional<bucket::Extent> extent = parameters_.sharded_extent(bucket_);
    if (extent) {
      const auto element = static_cast<int64_t>(c10::elementSize(parameters_.scalar_type()));
      extent->offset += pieces_[static_cast<size_t>(i)].first * element;
      extent->bytes = pieces_[static_cast<size_t>(i)].numel * element;
    }
    return extent;
  }

 private:
  const bucket::FlatParameters& parameters_;
  int64_t bucket_;
  std::vector<bucket::TensorRange> pieces_;
};

} // namespace trireme::engine
