#pragma once

#include <trireme/base/error.h>
#include <trireme/data/sampler.h>

#include <ATen/core/ivalue.h>
#include <nlohmann/json.hpp>
#include <torch/data/samplers/base.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::data {

/// DistributedSampler for a torch::data loader: use it in place of a RandomSampler.
///
/// Each pass over the loader is one epoch with its own order. Every rank gets the
/// same number of batches; surplus samples are left out.
///
/// After load() the next pass continues where save() was called, also in the middle of an epoch. The position counts the batches
/// that the loader requested, so a loader with workers is a few batches ahead of the training loop.
class TorchSampler : public torch::data::samplers::Sampler<> {
 public:
  TorchSampler(int64_t size, int64_t rank, int64_t replicas, SamplerOptions options = {})
      : sampler_(size, with_place(options, rank, replicas)) {}
  /// For this rank of `world` (comm::World or comm::Group).
  template <typename Ranks>
  TorchSampler(int64_t size, const Ranks& ranks, SamplerOptions options = {}) : TorchSampler(size, ranks.rank(), ranks.size(), options) {}

  void reset(std::optional<size_t> new_size = std::nullopt) override {
    if (new_size) {
      sampler_ = DistributedSampler(static_cast<int64_t>(*new_size), sampler_.options());
    }
    if (!std::exchange(loaded_, false) || new_size) {
      sampler_.start_epoch(passes_++);
    }
    ended_ = false;
  }
  std::optional<std::vector<size_t>> next(size_t batch_size) override {
    const auto batch = sampler_.next(static_cast<int64_t>(batch_size));
    if (!batch) {
      ended_ = true;
      return std::nullopt;
    }
    return std::vector<size_t>(batch->indices.begin(), batch->indices.end());
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    const nlohmann::json state = {{"sampler", sampler_.state()}, {"passes", passes_}, {"ended", ended_}};
    archive.write(kState, c10::IValue(state.dump()));
  }
  /// Errors: InputError for an archive of another sampler, or of other data.
  void load(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    if (!archive.try_read(kState, value) || !value.isString()) {
      throw InputError("data", "the archive holds no state of a trireme::TorchSampler");
    }
    const nlohmann::json state = nlohmann::json::parse(value.toStringRef());
    sampler_.load_state(state.at("sampler"));
    passes_ = state.at("passes");
    ended_ = state.at("ended");
    loaded_ = passes_ > 0 && !ended_;
  }

  DistributedSampler& sampler() {
    return sampler_;
  }

 private:
  static SamplerOptions with_place(SamplerOptions options, int64_t rank, int64_t replicas) {
    options.rank = rank;
    options.replicas = replicas;
    return options;
  }

  static constexpr const char* kState = "trireme_sampler";

  DistributedSampler sampler_;
  int64_t passes_ = 0;
  bool ended_ = false; // the pass has given all it has
  bool loaded_ = false; // a place within a pass, where the next one begins
};

} // namespace trireme::data
