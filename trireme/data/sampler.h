#pragma once

#include <trireme/base/stateful.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace trireme::data {

struct SamplerOptions {
  bool shuffle = true;
  /// true: drops the last, incomplete global micro-batch; false: fills it up from the epoch's start.
  bool drop_last = true;
  int64_t seed = 1234;
  /// This rank's index among the `replicas` ranks that share the samples: the mesh's data axis.
  int64_t rank = 0;
  int64_t replicas = 1;
  /// A custom order instead of `shuffle`: the indices of an epoch's samples, also without some or repeated. It must
  /// return the same on every call and rank: a checkpoint has the position and only a fingerprint of the order.
  std::function<std::vector<int64_t>(int64_t epoch)> order = nullptr;
};

/// Chooses the next samples of this rank. Positions count global samples, not those of a rank.
///
/// An epoch has every sample once, in order or permuted by (seed, epoch), the same on all platforms; or the samples
/// of SamplerOptions::order. A global micro-batch is positions [p, p + per_rank * replicas) of it; rank r takes p +
/// r, p + r + replicas, ...; then p advances by all of them. So the state is the same on every rank, and a state
/// saved by n ranks continues on m ranks without a repeat or a gap. Every rank gets the same number of micro-batches,
/// so no rank waits forever.
///
/// Memory: 8 bytes per sample while shuffling, allocated at an epoch's first `next`; else none. Errors: InputError
/// for no samples, a rank outside [0, replicas), or a custom order with an unknown sample or that changes between
/// calls.
class DistributedSampler : public Stateful {
 public:
  explicit DistributedSampler(int64_t size, SamplerOptions options = {});

  struct MicroBatch {
    /// Always per_rank indices.
    std::vector<int64_t> indices;
    /// The first `samples` are real, the rest repeat samples of this epoch as padding; may be 0.
    int64_t samples = 0;
  };

  /// Returns this rank's part of the next global micro-batch; nullopt at the epoch's end.
  std::optional<MicroBatch> next(int64_t per_rank);
  /// Skips a micro-batch without its indices; false at the epoch's end.
  bool skip(int64_t per_rank);
  /// Starts an epoch.
  void start_epoch(int64_t epoch);

  /// A sampler of all ranks' samples, at the same position: its micro-batch of per_rank * replicas samples has those of
  /// every rank.
  DistributedSampler for_all_ranks() const;
  /// Continues where `other` is, a sampler of the same samples in the same order.
  void move_to(const DistributedSampler& other);

  /// Counts the micro-batches of a full epoch, or the remaining ones of this epoch.
  int64_t micro_batches_per_epoch(int64_t per_rank) const;
  int64_t micro_batches_left(int64_t per_rank) const;

  int64_t epoch() const { return epoch_; }
  /// Global samples consumed in this epoch; never counts padding.
  int64_t position() const { return position_; }
  int64_t size() const { return size_; }
  /// Samples of this epoch: size(), or the length of the custom order.
  int64_t length() const { return options_.order ? std::ssize(*order_) : size_; }
  const SamplerOptions& options() const { return options_; }

  nlohmann::json state() const override;
  /// Continues at another sampler's position, saved on any number of ranks. Errors: InputError if the size, the seed,
  /// the shuffling or the custom order differ, because the rest of the epoch is then undefined.
  void load_state(const nlohmann::json& state) override;

 private:
  int64_t micro_batches_from(int64_t position, int64_t per_rank) const;
  int64_t at(int64_t position);
  std::shared_ptr<const std::vector<int64_t>> own_order(int64_t epoch) const;

  int64_t size_;
  SamplerOptions options_;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  /// Shared by copies. Always set with a custom order; otherwise null until needed, and without shuffling.
  std::shared_ptr<const std::vector<int64_t>> order_;
};

/// Permutes 0..size-1 by (seed, epoch): Fisher-Yates (Durstenfeld 1964) over mt19937_64, whose numbers the C++ standard
/// fixes. std::shuffle differs between libraries.
std::vector<int64_t> permutation(int64_t size, int64_t seed, int64_t epoch);

/// FNV-1a of the sample indices; never 0, which means unknown.
uint64_t fingerprint_of(std::span<const int64_t> samples);

} // namespace trireme::data
