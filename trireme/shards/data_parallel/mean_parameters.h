#pragma once

#include <trireme/comm/group.h>
#include <trireme/shards/bucket/flat_parameters.h>

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace trireme::parallel {

/// While it lives, the parameters are the mean of the replicas', to be evaluated; then they are the rank's own again,
/// to the bit.
///
/// Collective at its begin only. Memory: a copy of the parameters. Cost for P bytes of fp32 parameters and N ranks:
/// 2P(N-1)/N sent by each rank.
class MeanParameters {
 public:
  MeanParameters(const std::vector<bucket::FlatParameters*>& buffers, const comm::Group& ranks);
  ~MeanParameters();
  MeanParameters(const MeanParameters&) = delete;
  MeanParameters& operator=(const MeanParameters&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> own_; // flat parameters and the copy of them
};

} // namespace trireme::parallel
