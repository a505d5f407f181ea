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

/// Describes a tensor that is not finite throughout.
struct NonFinite {
  std::string name;
  int rank = 0; ///< in the world
  int64_t nan = 0;
  int64_t inf = 0;
  int64_t numel = 0;
};

/// Finds the first `most` tensors that hold NaN or Inf, in the order given. Undefined ones are passed over, and those without values (sharded parameters).
/// Cost: reads the tensors once.
std::vector<NonFinite> find_non_finite(const NamedTensors& tensors, int rank, int64_t most = 3);

/// Gathers what each rank of `group` found, ranks one after the other. Collective.
std::vector<NonFinite> gather_non_finite(const comm::Group& group, const std::vector<NonFinite>& here);

/// Writes "rank 1: h.3.mlp.c_fc.weight (12 NaN, 1 Inf of 4096), h.3.mlp.c_fc.bias (...); rank 2: ...", or "" for none.
std::string describe_non_finite(const std::vector<NonFinite>& found);

/// Tells which gradients of which rank a NaN or Inf came from: after the reduction all ranks have it.
///
/// While it lives it looks at each gradient as backward makes it, before anything is sent, so only steps that have to be explained pay
/// (one read of each gradient). Make it after some overflows in a row, run the next step's backward, and ask:
///
///   if (scaler.overflows_in_a_row() >= n) watch = std::make_unique<OverflowWatch>(named_parameters);
///   ...                                                       // the next step's micro-batches
///   log::warning(watch->report(group));
///
/// Gradients are listed in the order in which backward made them: the first one is nearest to where it went wrong.
class OverflowWatch {
 public:
  /// Hooks the parameters that require gradients. At most `most` are kept a rank.
  explicit OverflowWatch(const NamedTensors& parameters, int64_t most = 3);
  /// Takes the hooks off.
  ~OverflowWatch();
  OverflowWatch(const OverflowWatch&) = delete;
  OverflowWatch& operator=(const OverflowWatch&) = delete;

  /// What was seen on this rank since it was made or last reported.
  const std::vector<NonFinite>& seen() const;
  /// Says in one or two sentences what was seen on all ranks of `group`, and what it points to: weights that are not finite, a loss
  /// that is not, or a layer's backward. Forgets it. Collective. "" when all was finite.
  std::string report(const comm::Group& group);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

} // namespace trireme::precision
