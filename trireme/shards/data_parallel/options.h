#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace trireme::parallel {

/// How the gradients of the data-parallel ranks become one.
///
/// With `predivide` = gradient_predivide_factor and n ranks, `mean` multiplies by
/// 1/predivide before and predivide/n after the sum; prescale_gradients multiplies by 1/n
/// before and leaves the result alone. Both are the mean up to rounding.
struct DataParallelOptions {
  enum class Op { mean, sum };
  Op op = Op::mean;
  /// How a bucket is all-reduced: as the backend does it, or by one of the algorithms over messages of
  /// comm/algorithms/cost.h, to compare them. Those are not overlapped with backward and need tensors of the CPU.
  enum class Algorithm { backend, ring, tree, halving_doubling, naive };
  Algorithm algorithm = Algorithm::backend;
  static constexpr std::array<const char*, 5> kAlgorithmNames = {"backend", "ring", "tree", "halving-doubling",
                                                                 "naive"}; // in the order of the enumeration
  /// Gradients travel in buckets of at most this many bytes. Larger: fewer, later collectives.
  int64_t bucket_bytes = 25 << 20;
  /// The bucket that is ready first is smaller, so that communication starts early.
  int64_t first_bucket_bytes = 1 << 20;
  int64_t bytes_of_first_bucket() const {
    return std::min(first_bucket_bytes, bucket_bytes);
  }
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1.0;
  /// Parameters and buffers of the group's rank 0 replace everybody else's at the start.
  bool broadcast_at_start = true;
  /// The buffers of a module (BatchNorm's running_mean), which ranks change each in its own way, are made those of rank
  /// 0 once a step. As DistributedDataParallel's option of this name.
  bool broadcast_buffers = true;
  /// BatchNorm layers take their statistics over all ranks (convert_sync_batch_norm.h). Ranks then need the same number
  /// of batches.
  bool sync_batch_norm = false;
};

} // namespace trireme::parallel
