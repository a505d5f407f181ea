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

/// Parameters that were frozen when DataParallel was made, and get gradients nevertheless: they were unfrozen later.
///
/// Their gradients are summed one by one when backward is over, for those of them that any rank has a gradient of.
/// Cost: a look at each of them once a backward; an all-reduce for each that is unfrozen.
class LateParameters {
 public:
  /// `frozen`: tensors that may be unfrozen, the same on every rank; `in_buckets`: those that have a place there
  /// already.
  LateParameters(const bucket::NamedTensors& frozen, const bucket::NamedTensors& in_buckets,
                 std::weak_ptr<torch::nn::Module> model);

  int64_t size() const {
    return static_cast<int64_t>(frozen_.size());
  }
  /// A gradient of these begins a backward of the reducer, until another reducer has them in its buckets.
  std::vector<at::Tensor> tensors() const;
  /// Whether number i has a gradient on this rank. Errors: InputError for a sparse one.
  bool has_gradient(size_t i, const Reducer& reducer) const;
  /// Sums the gradients of those that are `wanted` (the same on all ranks), multiplied by `before`, the sums by
  /// `after`. Without `active` this rank adds nothing. Collective.
  void reduce(const std::function<bool(size_t i)>& wanted, const comm::Group& group, bool active, double before,
              double after);
  /// Throws InputError for a parameter of the model that has a gradient and was not there at construction. Cost:
  /// Module::named_parameters().
  void refuse_new() const;
  /// Makes those that were ever reduced the root's. Collective.
  void broadcast(const comm::Group& group, int root) const;
  void clear_grads();

 private:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    bool reduced = false; // its gradient, at least once
  };

  std::vector<Parameter> frozen_;
  std::set<const void*> known_;
  std::weak_ptr<torch::nn::Module> model_; // null where nobody shares it
};

} // namespace trireme::parallel
