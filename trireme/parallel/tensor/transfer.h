#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/tensor/piece_sizes.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::tensor {

/// What to do where derivatives of derivatives are wanted (fused::refuse_create_graph).
inline constexpr const char* kOnOneRank = "Use one tensor rank, and TRIREME_SIMD=scalar for ATen's operations.";

/// A collective on its way, and what it will give. Without gradients: exchange.h and linear.h have those.
class Transfer {
 public:
  Transfer(at::Tensor result, std::vector<comm::Work> works, std::vector<at::Tensor> kept = {})
      : result_(std::move(result)), works_(std::move(works)), kept_(std::move(kept)) {}
  /// The result, once it is there.
  at::Tensor wait();

 private:
  at::Tensor result_;
  std::vector<comm::Work> works_;
  std::vector<at::Tensor> kept_; // read until then
};

/// Memory of these sizes, as `like`, that the group's backend moves without a copy.
at::Tensor allocate(const comm::Group& ranks, at::IntArrayRef sizes, const at::Tensor& like);

/// Sums `y`, contiguous and best made by allocate(), over the ranks, in place.
Transfer start_sum(const at::Tensor& y, const comm::Group& ranks);
/// All ranks' x side by side in dim `dim`.
Transfer start_join(const at::Tensor& x, const comm::Group& ranks, int64_t dim);
/// This rank's part, in dim `dim`, of the sum of all ranks' x, which is best made by allocate().
Transfer start_sum_to_part(const at::Tensor& x, const comm::Group& ranks, int64_t dim);

} // namespace trireme::tensor
