#pragma once

#include <trireme/base/stateful.h>
#include <trireme/data/sampler.h>

#include <torch/data/samplers/base.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::horovod::elastic {

/// The samples of an epoch that no rank has done yet, divided among the ranks that are there now: for a torch::data
/// loader, between init() and shutdown() (or in run()'s `train`).
///
/// All ranks call record_batch() after each step, with the same number. The state counts what all have done, so it is
/// the same on every rank: with it in an elastic State, no sample before the last commit is repeated or left out,
/// whoever is lost. The order of an epoch does not depend on the number of ranks; its last batches are filled up from
/// its start.
class ElasticSampler : public torch::data::samplers::Sampler<>, public Stateful {
 public:
  explicit ElasticSampler(int64_t size, bool shuffle = true, int64_t seed = 0);

  /// Begins an epoch. Not needed for the first one, and not after a reset within one.
  void set_epoch(int64_t epoch);
  int64_t epoch() const {
    return recorded_.epoch();
  }
  /// This rank, and all others, have done `batch_size` more samples.
  void record_batch(int64_t batch_size);
  /// Samples of the epoch that all ranks have done.
  int64_t done() const {
    return recorded_.position();
  }

  /// Begins a pass over the samples that are left, among the ranks of now.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;

 private:
  data::SamplerOptions options_;
  data::DistributedSampler recorded_;   // what is done
  data::DistributedSampler handed_out_; // a loader with workers is ahead of that
};

} // namespace trireme::horovod::elastic
