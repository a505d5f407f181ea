#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <string_view>

namespace trireme::precision {

/// True if every element is finite. Cost: reads the tensor once, on all threads, without allocation.
bool all_finite(const at::Tensor& tensor);

/// Remembers whether a gradient of this step is NaN or Inf on any rank, so that all ranks skip the step or none does.
///
/// The flag is added to a sum that ranks reduce anyway (the gradient norm's, a pipeline's loss):
///
///   FoundInf found;
///   found.note(squared_norm);                                  // or found.look(gradient)
///   at::Tensor sums = torch::tensor({squared_norm, found.addend()}, torch::kFloat64);
///   group.all_reduce(sums).wait();
///   const bool skip = FoundInf::in_sum(sums[1].item<double>());
///
/// or, without such a sum, agree() all-reduces 8 bytes.
class FoundInf {
 public:
  /// Checks a gradient, unless an earlier one was not finite. Cost: reads it once.
  void look(const at::Tensor& gradient);
  /// Checks a number computed from all gradients, such as the sum of their squares: no further cost.
  void note(double made_of_gradients);

  /// True if this rank found NaN or Inf.
  bool here() const {
    return here_;
  }
  /// This rank's addend for a sum over the ranks.
  double addend() const {
    return here_ ? 1 : 0;
  }
  /// True if the sum of all addends reports NaN or Inf, or is not finite.
  static bool in_sum(double sum);
  /// Returns the same answer on every rank. Collective: one all-reduce (max).
  bool agree(const comm::Group& group, std::string_view what = "overflow") const;

 private:
  bool here_ = false;
};

} // namespace trireme::precision
