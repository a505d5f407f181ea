#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::precision {

/// The same type as bucket::NamedTensors.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// True if every element is finite. Cost: reads the tensor once, on all threads, without allocation.
bool all_finite(const at::Tensor& tensor);

/// A tensor with elements that are not finite.
struct NonFinite {
  std::string name;
  int rank = 0; ///< in the world
  int64_t nan = 0;
  int64_t inf = 0;
  int64_t numel = 0;
};

/// Finds the first `most` tensors that hold NaN or Inf, in the given order. Skips undefined and empty tensors (sharded
/// parameters). Cost: reads the tensors once.
std::vector<NonFinite> find_non_finite(const NamedTensors& tensors, int rank, int64_t most = 3);

/// Writes "rank 1: h.3.mlp.c_fc.weight (12 NaN, 1 Inf of 4096), h.3.mlp.c_fc.bias (...); rank 2: ...", or "" for none.
std::string describe_non_finite(const std::vector<NonFinite>& found);

/// Finds the gradients and the rank that a NaN or Inf came from: after the reduction all ranks have it.
///
/// Checks each gradient during its lifetime, as backward makes it and before communication (cost: one read of each).
/// Make one after some overflows in a row, run the next step's backward, and call report():
///
///   if (scaler.overflows_in_a_row() >= n) watch = std::make_unique<OverflowWatch>(named_parameters);
///   ...                                                       // the next step's micro-batches
///   log::warning(watch->report(group));
///
/// Gradients are listed in the order in which backward made them: the first one is nearest to the cause.
class OverflowWatch {
 public:
  /// Hooks the parameters that require gradients. Keeps at most `most` findings on each rank.
  explicit OverflowWatch(const NamedTensors& parameters, int64_t most = 3);
  /// Removes the hooks.
  ~OverflowWatch();
  OverflowWatch(const OverflowWatch&) = delete;
  OverflowWatch& operator=(const OverflowWatch&) = delete;

  /// Returns one or two sentences on what all ranks of `group` found and the likely cause: weights or a loss that are
  /// not finite, or a layer's backward. Clears the findings. Collective. "" if all was finite.
  std::string report(const comm::Group& group);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

} // namespace trireme::precision
