#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::config {

/// DeepSpeed's three batch sizes, in samples, as far as they are given.
struct BatchKeys {
  std::optional<int64_t> train;        // train_batch_size
  std::optional<int64_t> micro;        // train_micro_batch_size_per_gpu
  std::optional<int64_t> accumulation; // gradient_accumulation_steps
  /// Their position, for the error: "run.json:12:24".
  std::string where;
};

/// Holds for every solution: train = micro * accumulation * data_ranks.
struct BatchTriple {
  int64_t train = 0;
  int64_t micro = 0;
  int64_t accumulation = 0;

  bool operator==(const BatchTriple&) const = default;
};

/// Completes the batch sizes for `data_ranks` data-parallel ranks by DeepSpeed's rules:
/// two determine the third; train alone or micro alone means accumulation 1.
///
/// Errors: InputError with all numbers, the equation and the nearest triples that fulfil
/// it, when there is no solution in whole numbers; InputError when neither train nor
/// micro is given, or a number is not positive.
BatchTriple solve(const BatchKeys& keys, int64_t data_ranks);

} // namespace trireme::config
