#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/pipeline/module.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// Keeps the copies of tied parameters on several stages equal.
///
/// Gradients are summed over all copies before the data-parallel reduction; a copy without a
/// gradient counts as zeros, so no stage ever waits for one that has none. What no copy used stays without a gradient
/// on all of them.
class Ties {
 public:
  /// Collective over the pipeline's group: every stage makes the groups of all keys in the same order.
  Ties(const comm::Group& pipe, const PipelineModule& model);

  bool empty() const {
    return model_.ties().empty();
  }
  /// All copies get the first stage's value: at the start and after loading.
  void broadcast_weights() const;
  /// All copies get the sum of their gradients, if one of them has any. Cost: an all-reduce of each parameter, and one
  /// of a few numbers on the host for each key.
  void sum_gradients() const;

 private:
  /// Of one key: how many copies of each parameter have a gradient, here and, where there is a group, on all stages.
  struct Uses {
    std::vector<int64_t> counts;
    at::Tensor sum;
    comm::Work work;

    bool any(size_t i);
  };
  std::map<std::string, Uses> count_uses() const;

  const PipelineModule& model_;
  std::map<std::string, comm::Group> groups_; // by key; absent: the copies are all here
};

} // namespace trireme::pipeline
