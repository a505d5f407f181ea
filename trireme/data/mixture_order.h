#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace trireme::data {

/// Which data set each sample of an endless mixture is of, so that after every sample each set has its share.
///
/// Sample n is of the set that lacks most: the largest weight * max(n, 1) - samples so far, the first of equal ones. So
/// counts differ from weight * n by less than 2 samples for 2 sets. Source: Megatron-LM's blended dataset
/// (build_blending_indices in megatron/core/datasets/helpers.cpp).
///
/// Thread-safe. Cost: one pass over the samples before, at the first use, of about 2 ns for each sample and set; then
/// amortized one step a sample. Memory: 8 bytes per set for 65,536 samples, and one such block.
class MixtureOrder {
 public:
  /// Weights are above 0, of any sum.
  explicit MixtureOrder(std::vector<double> weights);

  struct Place {
    size_t set = 0;
    int64_t number = 0; ///< of samples that its set has before
  };
  Place at(int64_t sample) const;
  /// How many of the first `samples` are of each set.
  std::vector<int64_t> counts(int64_t samples) const;
  /// Of each set; their sum is 1.
  const std::vector<double>& shares() const { return shares_; }

 private:
  static constexpr int64_t kBlock = 1 << 16;

  size_t step(int64_t sample, std::vector<int64_t>& counts) const;
  const std::vector<int64_t>& start_of(int64_t block) const;

  std::vector<double> shares_;
  mutable std::mutex mutex_;
  mutable std::vector<std::vector<int64_t>> starts_; // counts before each block
  mutable std::vector<Place> block_;                 // of number current_
  mutable int64_t current_ = -1;
};

} // namespace trireme::data
