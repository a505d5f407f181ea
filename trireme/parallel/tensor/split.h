#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/tensor/split_module.h>
#include <trireme/parallel/tensor/split_rules.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::tensor {

struct SplitParameter;

/// An ordinary model, without code for ranks, whose weights are split over tensor-parallel
/// ranks.
///
///   auto model = std::make_shared<Block>(...); // any torch::nn module, built the same way on every rank
///   auto split = tensor::SplitModel::split(
///       *model, {{SplitRule::Kind::column, ".*fc1"}, {SplitRule::Kind::row, ".*fc2"}}, group);
///   model->forward(x); // as before: x and the result are the same on all ranks
///
/// Each rank keeps its part of a weight. Operators on it run with the exchanges between the
/// ranks: copy_to_ranks() and sum_over_ranks() around torch::nn::Linear, torch::linear(),
/// x.matmul(weight.t()); masked rows and a sum for torch::embedding(). Autograd, autocast,
/// recomputation, optimizers and set_data() work as on any parameter. Operators that cannot work
/// on a part (a norm of the weight, a convolution, a product in another order) throw an
/// InputError that names operator and parameter.
///
/// Requirements on the model:
/// - The output of a column rule is this rank's part of the features. Only operations on single features or heads may
///   stand between it and the row rule that sums (activations, attention by heads). A model that views heads must not
///   count them: -1 heads of a fixed width. If the output is used anywhere else, use column_gathered.
/// - SplitRule::grain = the width of a head keeps heads in one piece.
/// - All ranks must draw the same random numbers outside of split layers, so they need the same seed. A dropout between
///   a column and a row rule draws the same mask on each rank's own features.
/// - An unsplit parameter that acts on split features (a scale of each head) gets different gradients on the ranks:
///   check_gradients() finds it.
/// - Gradients of split parameters are parts: use clip_grad_norm(), or the engine's, for the norm of all.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053.
class SplitModel {
 public:
  /// Splits the model in place. Collective over `ranks`: all have built the same model; the values are rank 0's. Call
  /// it before the parameters are in an optimizer, a hook or a backward pass. A group of one changes nothing. Cost: a
  /// broadcast of each parameter and buffer; memory for one more parameter. Errors: InputError, on all ranks, for
  /// models or rules that differ between ranks, and a rule that matches nothing or only after earlier rules. InputError
  /// also for a parameter that cannot be split so (shape, max_norm, fewer rows than ranks), one tensor that two rules
  /// split differently, and columns that no row rule sums up.
  static SplitModel split(torch::nn::Module& model, const std::vector<SplitRule>& rules, const comm::Group& ranks);

  SplitModel(SplitModel&&) noexcept;
  SplitModel& operator=(SplitModel&&) noexcept;
  ~SplitModel();

  /// The placement of this rank's part in the full parameter; empty if it is not split.
  std::optional<bucket::Placement> placement_of(const std::string& name) const;
  /// All of them, as the engine takes them.
  Placements placements() const;
  /// One line per split parameter: name, kind, full shape and this rank's shape.
  std::string describe() const;

  /// Checks, after a backward pass, that the gradients of unsplit parameters are equal on all ranks. Collective. Cost:
  /// one read of them and a few bytes each; on a GPU the host waits once. Returns false, without comparing, if some are
  /// not finite (fp16's first steps). Errors: InputError naming the parameter whose gradients differ.
  bool check_gradients() const;
  /// torch::nn::utils::clip_grad_norm_() over the full model: returns the norm before clipping, the same on all ranks.
  /// Collective.
  double clip_grad_norm(double max_norm) const;

 private:
  struct Entry;
  SplitModel(comm::Group ranks, std::vector<Entry> entries);

  comm::Group ranks_;
  std::vector<Entry> entries_; ///< in the order of the model, a tied parameter under each of its names
};

} // namespace trireme::tensor
