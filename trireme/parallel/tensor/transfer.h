#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/tensor/piece_sizes.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::tensor {

/// Advice in errors about double backward (fused::refuse_create_graph).
inline constexpr const char* kOnOneRank = "Use one tensor rank, and TRIREME_SIMD=scalar for ATen's operations.";

/// A running collective and its result. Without gradients: exchange.h and linear.h add them.
class Transfer {
 public:
  Transfer(at::Tensor result, std::vector<comm::Work> works, std::vector<at::Tensor> kept = {})
      : result_(std::move(result)), works_(std::move(works)), kept_(std::move(kept)) {}
  /// Waits for the result and returns it.
  at::Tensor wait();

 private:
  at::Tensor result_;
  std::vector<comm::Work> works_;
  std::vector<at::Tensor> kept_; // read until then
};

/// Allocates memory of these sizes, as `like`, that the group's backend sends without a copy.
at::Tensor allocate(const comm::Group& ranks, at::IntArrayRef sizes, const at::Tensor& like);

/// All-reduces `y` in place; it must be contiguous and should come from allocate().
Transfer start_sum(const at::Tensor& y, const comm::Group& ranks);
/// All-gathers the ranks' x along `dim`.
Transfer start_join(const at::Tensor& x, const comm::Group& ranks, int64_t dim);
/// Reduce-scatters x along `dim`; x should come from allocate().
Transfer start_sum_to_part(const at::Tensor& x, const comm::Group& ranks, int64_t dim);

} // namespace trireme::tensor
