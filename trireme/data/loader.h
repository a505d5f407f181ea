#pragma once

#include <trireme/base/stateful.h>
#include <trireme/data/dataset.h>
#include <trireme/data/sampler.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace trireme::data {

/// The ranks whose targets are counted to weigh a loss: all whose gradients are summed in a step.
enum class TargetsOf { all_ranks, this_rank };

/// Micro-batches of one rank in epochs: what a RepeatingLoader reads without end. The state is the position after the
/// last returned batch.
class EpochLoader : public Stateful {
 public:
  /// The next micro-batch; nullopt at the epoch's end, until `start_epoch` is called.
  virtual std::optional<Batch> next() = 0;
  /// Skips a micro-batch; false at the epoch's end.
  virtual bool skip() = 0;
  /// Mean number of targets that count in the next `micro_batches` of `ranks`, also beyond the epoch's end. nullopt:
  /// all targets count, or this rank reads none.
  virtual std::optional<double> mean_targets_ahead(int64_t /*micro_batches*/, TargetsOf /*ranks*/) {
    return std::nullopt;
  }
  /// Starts an epoch, also in the middle of another.
  virtual void start_epoch(int64_t epoch) = 0;
  virtual int64_t epoch() const = 0;
  /// Errors: InputError if an epoch has no micro-batch.
  virtual void check_epoch() const = 0;
  /// What it reads: "tokens: 4.02M in 31.4k samples of 128 (austen.bin)".
  virtual std::string describe() const = 0;
};

/// Returns this rank's micro-batches, epoch after epoch; a thread prefetches them.
///
///   while (auto batch = loader.next()) { ... }
///   loader.start_epoch(loader.epoch() + 1);
///
/// The state is the position after the last returned batch; prefetched batches do not count and are made again after
/// `load_state`. An exception of the dataset is thrown by the `next` that would have returned its batch. The position
/// stays before that batch and the next call tries again.
///
/// Not thread-safe. The destructor waits for at most one Dataset::get.
class DataLoader : public EpochLoader {
 public:
  /// Prefetches `prefetch` micro-batches; 0: `next` makes each one, without a thread. `pin`: the tensors are in pinned
  /// memory, from which a GPU copies while it computes. Errors: InputError for a micro-batch size below 1, a negative
  /// prefetch, or a sampler of another size.
  DataLoader(std::shared_ptr<const Dataset> dataset, DistributedSampler sampler, int64_t micro_batch_size,
             int64_t prefetch = 2, Part part = Part::all, bool pin = false);
  ~DataLoader() override;
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;

  /// The next micro-batch; nullopt at the epoch's end, until `start_epoch` is called. It always has micro_batch_size
  /// rows, of which the first `Batch::samples` are real (possibly 0). Evaluations use `narrow(0, 0, samples)` and
  /// weight by it.
  std::optional<Batch> next() override;
  /// Skips a micro-batch without reading it; false at the epoch's end.
  bool skip() override;
  /// Memory, if not all targets count: 8 bytes for each sample while shuffling. Cost: Dataset::counted_targets().
  std::optional<double> mean_targets_ahead(int64_t micro_batches, TargetsOf ranks) override;
  void start_epoch(int64_t epoch) override;
  void check_epoch() const override;
  std::string describe() const override { return dataset_->describe(); }

  int64_t batches_per_epoch() const;
  int64_t batches_left() const;
  int64_t epoch() const override { return sampler_.epoch(); }
  int64_t micro_batch_size() const { return micro_batch_size_; }
  const Dataset& dataset() const { return *dataset_; }
  const DistributedSampler& sampler() const { return sampler_; }

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;

 private:
  class Prefetcher;

  std::shared_ptr<const Dataset> dataset_;
  DistributedSampler sampler_;
  int64_t micro_batch_size_;
  int64_t prefetch_;
  Part part_;
  bool pin_;
  std::optional<DistributedSampler> counter_; // of the samples of counted_; set when needed
  TargetsOf counted_ = TargetsOf::all_ranks;
  std::unique_ptr<Prefetcher> prefetcher_;
};

/// An endless loader: each epoch is followed by the next, with its own order.
class RepeatingLoader : public Stateful {
 public:
  /// Errors, also of next(): InputError if an epoch of `loader` has no micro-batch.
  explicit RepeatingLoader(DataLoader loader);
  /// Of your own batches: ReplayLoader, from_torch_loader().
  explicit RepeatingLoader(std::unique_ptr<EpochLoader> loader);

  /// Where not all targets count, sets Batch::loss_weight: from the number of targets that count of this micro-batch,
  /// and of the micro-batches of the step it belongs to, of all ranks or of this one.
  Batch next();
  /// Micro-batches of a step, of this rank; by default 1. Steps follow one another from here on, and from each
  /// load_state() and begin_step().
  void set_micro_batches_per_step(int64_t count);
  /// Weighs the losses of the steps that begin from now on; by default by the targets of all ranks.
  void weigh_by(TargetsOf ranks) { ranks_ = ranks; }
  /// The next micro-batch is the first of a step.
  void begin_step() { left_in_step_ = 0; }
  /// Skips one micro-batch, as EpochLoader::skip() does.
  void skip();
  int64_t epoch() const { return loader_->epoch(); }
  std::string describe() const { return loader_->describe(); }

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;

 private:
  void start_next_epoch();
  Batch next_of_epochs();

  std::unique_ptr<EpochLoader> loader_;
  int64_t per_step_ = 1;
  int64_t left_in_step_ = 0;
  TargetsOf ranks_ = TargetsOf::all_ranks;
  std::optional<double> mean_targets_; // of the micro-batches of this step
};

} // namespace trireme::data
