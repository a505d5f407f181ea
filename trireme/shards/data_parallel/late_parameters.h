#pragma once

#include <trireme/comm/group.h>
#include <trireme/shards/bucket/flat_parameters.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::parallel {

class Reducer;

/// Parameters that were frozen when DataParallel was made, and were unfrozen later.
///
/// After backward, their gradients are summed one by one, if any rank has one. Cost: a check of each of them per
/// backward, and an all-reduce for each unfrozen one.
class LateParameters {
 public:
  /// `frozen`: tensors that may be unfrozen, the same on every rank. `in_buckets`: tensors that are already in a
  /// bucket.
  LateParameters(const bucket::NamedTensors& frozen, const bucket::NamedTensors& in_buckets,
                 std::weak_ptr<torch::nn::Module> model);

  int64_t size() const { return static_cast<int64_t>(frozen_.size()); }
  /// Tensors whose gradient begins a backward of the reducer, until another reducer has them in its buckets.
  std::vector<at::Tensor> tensors() const;
  /// True if tensor i has a gradient on this rank. Errors: InputError for a sparse gradient.
  bool has_gradient(size_t i, const Reducer& reducer) const;
  /// Sums the gradients of the `wanted` tensors (the same on all ranks). Gradients are multiplied by `before`, their
  /// sums by `after`. Without `active` this rank adds nothing. Collective.
  void reduce(const std::function<bool(size_t i)>& wanted, const comm::Group& group, bool active, double before,
              double after);
  /// Throws InputError if a parameter has a gradient but was not in the model at construction. Cost:
  /// Module::named_parameters().
  void refuse_new() const;
  /// Broadcasts the root's values of all tensors that were ever reduced. Collective.
  void broadcast(const comm::Group& group, int root) const;
  void clear_grads();

 private:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    bool reduced = false; // its gradient was reduced at least once
  };

  std::vector<Parameter> frozen_;
  std::set<const void*> known_;
  std::weak_ptr<torch::nn::Module> model_; // null if the model is not owned by a shared_ptr
};

} // namespace trireme::parallel
