#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/pipeline/module.h>

#include <map>
#include <string>

namespace trireme::pipeline {

/// Keeps the copies of tied parameters on several stages equal.
///
/// Gradients are summed over all copies before the data-parallel reduction; a copy without a
/// gradient counts as zeros, so no stage ever waits for one that has none.
class Ties {
 public:
  /// Collective over the pipeline's group: every stage makes the groups of all keys in the same order.
  Ties(const comm::Group& pipe, const PipelineModule& model);

  bool empty() const {
    return model_.ties().empty();
  }
  /// All copies get the first stage's value: at the start and after loading.
  void broadcast_weights() const;
  /// All copies get the sum of their gradients.
  void sum_gradients() const;

 private:
  const PipelineModule& model_;
  std::map<std::string, comm::Group> groups_; // by key; absent: the copies are all here
};

} // namespace trireme::pipeline
