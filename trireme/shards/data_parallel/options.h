#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace trireme::parallel {

/// Options for the sum of the data-parallel ranks' gradients.
///
/// With `predivide` = gradient_predivide_factor and n ranks, `mean` multiplies by 1/predivide before the sum and by
/// predivide/n after it. prescale_gradients multiplies by 1/n before the sum and does not change the result. Both give
/// the mean up to rounding.
struct DataParallelOptions {
  enum class Op { mean, sum };
  Op op = Op::mean;
  /// Selects the all-reduce: the backend's, or an algorithm over messages of comm/algorithms/cost.h, for comparisons.
  /// The latter need CPU tensors and do not overlap with backward.
  enum class Algorithm { backend, ring, tree, halving_doubling, naive };
  Algorithm algorithm = Algorithm::backend;
  static constexpr std::array<const char*, 5> kAlgorithmNames = {"backend", "ring", "tree", "halving-doubling",
                                                                 "naive"}; // in the order of the enumeration
  /// Largest bucket in bytes. A larger value gives fewer and later collectives.
  int64_t bucket_bytes = 25 << 20;
  /// Size of the bucket that is ready first. It is smaller, so that communication starts early.
  int64_t first_bucket_bytes = 1 << 20;
  int64_t bytes_of_first_bucket() const { return std::min(first_bucket_bytes, bucket_bytes); }
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1.0;
  /// Broadcasts the parameters and buffers of the group's rank 0 at the start.
  bool broadcast_at_start = true;
  /// Broadcasts rank 0's module buffers (BatchNorm's running_mean) once per step, because each rank changes its own.
  /// Same as DistributedDataParallel's option of this name.
  bool broadcast_buffers = true;
  /// Computes BatchNorm statistics over all ranks (convert_sync_batch_norm.h). Ranks then need equally many batches.
  bool sync_batch_norm = false;
};

} // namespace trireme::parallel
