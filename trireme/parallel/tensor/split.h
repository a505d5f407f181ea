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

/// An ordinary model, whose layers know nothing of ranks, with weights split over tensor-parallel ranks.
///
///   auto model = std::make_shared<Block>(...);                       // any torch::nn module, built the same way on
///   every rank auto split = tensor::SplitModel::split(*model, {{SplitRule::Kind::column, ".*fc1"},
///   {SplitRule::Kind::row, ".*fc2"}}, group); model->forward(x);                                               // as
///   before: x and the result are the same on all ranks
///
/// Each rank keeps its part of a weight, and operators that get one exchange what belongs between the ranks:
/// copy_to_ranks() and sum_over_ranks() around torch::nn::Linear, torch::linear(), x.matmul(weight.t()); masked rows
/// and a sum for torch::embedding(). Autograd, autocast, recomputation, optimizers and set_data() work as they do on
/// any parameter. What cannot work on a part (a norm of the weight, a convolution, a product in another order) is an
/// InputError that names the operator and the parameter.
///
/// What the model must keep to:
/// - The output of a column rule is this rank's part of the features. Between it and the row rule that sums it may
/// stand only what treats features,
///   or heads, one by one (activations, attention by heads). A model that views heads counts its own: -1 heads of a
///   fixed width, not a fixed number of heads. A layer whose output goes anywhere else is column_gathered.
/// - Heads are not torn when SplitRule::grain is the width of a head.
/// - Random numbers: all ranks draw the same outside of split layers, so they have the same seed. A dropout between a
/// column and a row rule draws the same
///   mask on each rank's own features.
/// - A parameter that stays whole but acts on split features (a scale of each head) gets another gradient on each rank:
/// check_gradients() finds it.
/// - Gradients of split parameters are parts: a norm over all is clip_grad_norm(), or the engine's.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053.
class SplitModel {
 public:
  /// Splits the model in place. Collective over `ranks`: all have built the same model; the values are rank 0's. Call
  /// it before an optimizer, hooks or a backward pass have met the parameters. A group of one changes nothing. Cost: a
  /// broadcast of each parameter and buffer; memory for one parameter more. Errors: InputError, on all ranks, for
  /// models or rules that differ between ranks, a rule that matches nothing or always too late, a parameter that cannot
  /// be split so (shape, max_norm, fewer rows than ranks), one tensor that two rules split in different ways, and
  /// columns that nothing sums up.
  static SplitModel split(torch::nn::Module& model, const std::vector<SplitRule>& rules, const comm::Group& ranks);

  SplitModel(SplitModel&&) noexcept;
  SplitModel& operator=(SplitModel&&) noexcept;
  ~SplitModel();

  /// Where this rank's part of a split parameter lies in the whole; nothing for one that every rank has whole.
  std::optional<bucket::Placement> placement_of(const std::string& name) const;
  /// The same for all of them, as the engine takes them.
  Placements placements() const;
  /// One line a split parameter: name, kind, shape of the whole and of this rank's part.
  std::string describe() const;

  /// After a backward pass: the gradients of parameters that every rank has whole must be equal. Collective. Cost: a
  /// read of them and a few bytes each. Returns false, without having compared, where some are not finite (fp16's first
  /// steps). On a device: one wait of the host. Errors: InputError naming the parameter whose gradients differ.
  bool check_gradients() const;
  /// torch::nn::utils::clip_grad_norm_() over the whole model: returns the norm before clipping, the same on all ranks.
  /// Collective.
  double clip_grad_norm(double max_norm) const;

 private:
  struct Entry;
  SplitModel(comm::Group ranks, std::vector<Entry> entries);

  comm::Group ranks_;
  std::vector<Entry> entries_; ///< in the order of the model, a tied parameter under each of its names
};

} // namespace trireme::tensor
