#pragma once

#include <trireme/data/sampler.h>

#include <torch/data/samplers/base.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::data {

/// DistributedSampler for a torch::data loader: give it where a RandomSampler stood.
///
/// Each pass over the loader is one epoch with an order of its own. Every rank gets the
/// same number of batches; the samples that would make them unequal are left out.
class TorchSampler : public torch::data::samplers::Sampler<> {
 public:
  TorchSampler(int64_t size, int64_t rank, int64_t replicas, SamplerOptions options = {})
      : sampler_(size, with_place(options, rank, replicas)) {}
  /// The place of this rank among all of `world` (comm::World or comm::Group).
  template <typename Ranks>
  TorchSampler(int64_t size, const Ranks& ranks, SamplerOptions options = {}) : TorchSampler(size, ranks.rank(), ranks.size(), options) {}

  void reset(std::optional<size_t> new_size = std::nullopt) override {
    if (new_size) {
      sampler_ = DistributedSampler(static_cast<int64_t>(*new_size), sampler_.options());
    }
    sampler_.start_epoch(passes_++);
  }
  std::optional<std::vector<size_t>> next(size_t batch_size) override {
    const auto batch = sampler_.next(static_cast<int64_t>(batch_size));
    if (!batch) {
      return std::nullopt;
    }
    return std::vector<size_t>(batch->indices.begin(), batch->indices.end());
  }
  /// Not part of libtorch's archives: keep state() instead.
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

  DistributedSampler& sampler() {
    return sampler_;
  }

 private:
  static SamplerOptions with_place(SamplerOptions options, int64_t rank, int64_t replicas) {
    options.rank = rank;
    options.replicas = replicas;
    return options;
  }

  DistributedSampler sampler_;
  int64_t passes_ = 0;
};

} // namespace trireme::data
