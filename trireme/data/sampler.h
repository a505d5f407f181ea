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
  /// true: leave out the last, incomplete global micro-batch; false: fill it up from the epoch's start.
  bool drop_last = true;
  int64_t seed = 1234;
  /// This rank's place among the `replicas` ranks that share the samples: the mesh's data axis.
  int64_t rank = 0;
  int64_t replicas = 1;
  /// The client's own sampler, in the place of `shuffle`: the numbers of an epoch's samples in their order. Samples may be left out or come
  /// again. It gives the same every time and on every rank, because a checkpoint has the place in the order, and only a fingerprint of the order.
  std::function<std::vector<int64_t>(int64_t epoch)> order = nullptr;
};

/// Says which samples this rank takes next. Positions count global samples, not those of a rank.
///
/// An epoch is every sample once: in order, or permuted by (seed, epoch) alike on all
/// platforms; or what SamplerOptions::order says. A global micro-batch is positions [p, p + per_rank * replicas) of it, of which rank r
/// takes p + r, p + r + replicas, ...; then p moves on by all of them. The state is therefore the
/// same on every rank, and one saved by n ranks continues on m ranks without a repeat or a gap.
/// Every rank gets the same number of micro-batches, so that none waits for another forever.
///
/// Cost: 8 bytes a sample while shuffling, built at an epoch's first `next`; nothing otherwise.
/// Errors: InputError for no samples, a rank outside [0, replicas), or an own order with a sample that is not there or another answer the second time.
class DistributedSampler : public Stateful {
 public:
  explicit DistributedSampler(int64_t size, SamplerOptions options = {});

  struct MicroBatch {
    /// Always per_rank of them.
    std::vector<int64_t> indices;
    /// The first `samples` are real, the rest repeat samples of this epoch as padding; may be 0.
    int64_t samples = 0;
  };

  /// Returns this rank's part of the next global micro-batch; nullopt at the epoch's end.
  std::optional<MicroBatch> next(int64_t per_rank);
  /// Moves on as `next` does, without the indices; false at the epoch's end.
  bool skip(int64_t per_rank);
  /// Goes to the start of an epoch.
  void start_epoch(int64_t epoch);

  /// Counts the micro-batches of a whole epoch, or of what is left of this one.
  int64_t micro_batches_per_epoch(int64_t per_rank) const;
  int64_t micro_batches_left(int64_t per_rank) const;

  int64_t epoch() const {
    return epoch_;
  }
  /// Global samples consumed in this epoch; never counts padding.
  int64_t position() const {
    return position_;
  }
  int64_t size() const {
    return size_;
  }
  /// Samples of this epoch: size(), or how many the own order has.
  int64_t length() const {
    return options_.order ? std::ssize(*order_) : size_;
  }
  const SamplerOptions& options() const {
    return options_;
  }

  nlohmann::json state() const override;
  /// Continues where another sampler was, of any number of ranks. Throws InputError when the size, the
  /// seed, the shuffling or the own order differ, for then "the rest of the epoch" has no meaning.
  void load_state(const nlohmann::json& state) override;

 private:
  int64_t micro_batches_from(int64_t position, int64_t per_rank) const;
  int64_t at(int64_t position);
  std::shared_ptr<const std::vector<int64_t>> own_order(int64_t epoch) const;

  int64_t size_;
  SamplerOptions options_;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  /// Shared by copies. An own order is always there; else absent until needed and without shuffling.
  std::shared_ptr<const std::vector<int64_t>> order_;
};

/// Permutes 0..size-1 by (seed, epoch): Fisher-Yates (Durstenfeld 1964) over mt19937_64, whose
/// numbers the C++ standard fixes. std::shuffle's are each library's own.
std::vector<int64_t> permutation(int64_t size, int64_t seed, int64_t epoch);

/// FNV-1a over sample numbers; never 0, which means unknown.
uint64_t fingerprint_of(std::span<const int64_t> samples);

} // namespace trireme::data
