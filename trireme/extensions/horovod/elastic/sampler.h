#pragma once

#include <trireme/base/stateful.h>
#include <trireme/data/sampler.h>

#include <torch/data/samplers/base.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::horovod::elastic {

/// Divides the samples of an epoch that no rank has done yet among the current ranks. For a torch::data loader, between
/// init() and shutdown() or in run()'s `train`.
///
/// All ranks call record_batch() after each step, with the same number. The state counts the samples that all ranks
/// have done, so it is the same on every rank. In an elastic State, no sample before the last commit is repeated or
/// left out, whichever rank is lost. The order of an epoch does not depend on the number of ranks; its last batches are
/// filled up from its start.
class ElasticSampler : public torch::data::samplers::Sampler<>, public Stateful {
 public:
  explicit ElasticSampler(int64_t size, bool shuffle = true, int64_t seed = 0);

  /// Begins an epoch. Not needed for the first one, nor after a reset within one.
  void set_epoch(int64_t epoch);
  int64_t epoch() const { return recorded_.epoch(); }
  /// Records that every rank has done `batch_size` more samples.
  void record_batch(int64_t batch_size);
  /// Samples of the epoch that all ranks have done.
  int64_t done() const { return recorded_.position(); }

  /// Begins a pass over the remaining samples, divided among the current ranks.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;

 private:
  data::SamplerOptions options_;
  data::DistributedSampler recorded_;   // samples that are done
  data::DistributedSampler handed_out_; // ahead of that, in a loader with workers
};

} // namespace trireme::horovod::elastic
