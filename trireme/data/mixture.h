#pragma once

#include <trireme/data/dataset.h>
#include <trireme/data/mixture_order.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {

/// Samples of several data sets in fixed shares, without end (mixture_order.h): read it in order.
///
/// A set that has been read to its end begins again, and shuffled sets then have another order. Which sample of which
/// set is number i depends on (sets, weights, seed) only: the same for any number of ranks, after a resume, and on all
/// platforms. Memory: 8 bytes for each sample of a set, twice where sets are shuffled. Thread-safe.
class Mixture : public Dataset {
 public:
  struct Set {
    std::shared_ptr<const Dataset> data;
    double weight = 1;
    std::string name;
  };
  struct Order {
    bool shuffle = true;
    int64_t seed = 1234;
  };
  /// Errors: InputError for no sets, weights that are not above 0, and sets whose samples have other shapes or types.
  Mixture(std::vector<Set> sets, Order order);

  /// What stands for "without end".
  int64_t size() const override { return int64_t{1} << 48; }
  Batch get(std::span<const int64_t> indices) const override { return get_part(indices, Part::all); }
  Batch get_part(std::span<const int64_t> indices, Part part) const override;
  /// True if those of a set do: all targets of the other sets count.
  bool masks_targets() const override;
  int64_t counted_targets(std::span<const int64_t> indices) const override;
  uint64_t fingerprint() const override;
  /// Known if that of every set is.
  uint64_t checksum() const override;
  std::string describe() const override;

  /// The number of a sample in its set.
  std::pair<size_t, int64_t> sample_at(int64_t index) const;
  /// Of the first `samples`: "70.0 % web.txt (1.31 epochs), 30.0 % books (0.04 epochs)".
  std::string describe_first(int64_t samples) const;

 private:
  using Permutation = std::shared_ptr<const std::vector<int64_t>>;
  Permutation permutation_of(size_t set, int64_t epoch) const;
  std::vector<std::pair<size_t, int64_t>> rows_of(std::span<const int64_t> indices) const;

  std::vector<Set> sets_;
  Order order_;
  MixtureOrder choices_;
  int64_t targets_of_a_sample_;
  mutable std::mutex mutex_;
  /// For each set the orders of two epochs, the later one last.
  mutable std::vector<std::vector<std::pair<int64_t, Permutation>>> permutations_;
};

/// The samples of several data sets, one set after the other.
class Concatenation : public Dataset {
 public:
  /// Errors: InputError as Mixture.
  explicit Concatenation(std::vector<std::shared_ptr<const Dataset>> sets);

  int64_t size() const override { return ends_.back(); }
  Batch get(std::span<const int64_t> indices) const override { return get_part(indices, Part::all); }
  Batch get_part(std::span<const int64_t> indices, Part part) const override;
  /// As Mixture's.
  bool masks_targets() const override;
  int64_t counted_targets(std::span<const int64_t> indices) const override;
  uint64_t checksum() const override;
  std::string describe() const override;

 private:
  std::vector<std::pair<size_t, int64_t>> rows_of(std::span<const int64_t> indices) const;

  std::vector<std::shared_ptr<const Dataset>> sets_;
  int64_t targets_of_a_sample_;
  std::vector<int64_t> ends_; // the number of samples up to the end of each
};

} // namespace trireme::data
