#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <string_view>

namespace trireme::precision {

/// Says whether every element is finite. Cost: reads the tensor once, on all threads, without memory of its own.
bool all_finite(const at::Tensor& tensor);

/// Remembers whether a gradient of this step is NaN or Inf on any rank, so that all ranks skip the step or none does.
///
/// The answer joins a sum that ranks exchange anyway (the gradient norm's, a pipeline's loss):
///
///   FoundInf found;
///   found.note(squared_norm);                                  // or found.look(gradient)
///   at::Tensor sums = torch::tensor({squared_norm, found.addend()}, torch::kFloat64);
///   group.all_reduce(sums).wait();
///   const bool skip = FoundInf::in_sum(sums[1].item<double>());
///
/// or, where nothing is exchanged, agree() asks by itself: 8 bytes.
class FoundInf {
 public:
  /// Looks through a gradient, unless one was bad already. Costs one read of it.
  void look(const at::Tensor& gradient);
  /// Takes a number that was made of all gradients, such as the sum of their squares: costs nothing.
  void note(double made_of_gradients);

  /// On this rank.
  bool here() const {
    return here_;
  }
  /// This rank's part of a sum over the ranks.
  double addend() const {
    return here_ ? 1 : 0;
  }
  /// What the sum of all addends means; a sum that is itself not finite counts as found.
  static bool in_sum(double sum);
  /// Collective: one all-reduce (max). The same answer on every rank.
  bool agree(const comm::Group& group, std::string_view what = "overflow") const;

 private:
  bool here_ = false;
};

} // namespace trireme::precision
