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
/// Gradients are summed over all copies before the data-parallel reduction. A copy without a gradient
/// counts as zeros, so no stage waits for one. A parameter that no copy used has no gradient on all of
/// them.
class Ties {
 public:
  /// Collective over the pipeline's group: every stage makes the groups of all keys in the same order.
  Ties(const comm::Group& pipe, const PipelineModule& model);

  bool empty() const { return model_.ties().empty(); }
  /// Broadcasts the first stage's values: at the start and after loading.
  void broadcast_weights() const;
  /// Sums the gradients over all copies, if one of them has any. Cost: one all-reduce per parameter, and one of a few
  /// numbers on the host per key.
  void sum_gradients() const;

 private:
  /// For one key: number of copies with a gradient per parameter, on this rank and, with a group, on all stages.
  struct Uses {
    std::vector<int64_t> counts;
    at::Tensor sum;
    comm::Work work;

    bool any(size_t i);
  };
  std::map<std::string, Uses> count_uses() const;

  const PipelineModule& model_;
  std::map<std::string, comm::Group> groups_; // by key; absent: all copies are on this rank
};

} // namespace trireme::pipeline
