#pragma once

#include <trireme/comm/group.h>
#include <trireme/shards/bucket/flat_parameters.h>

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace trireme::parallel {

/// Replaces the parameters by the replicas' mean while it lives, for an evaluation. Afterwards they have the rank's own
/// bits again.
///
/// The constructor is collective, the destructor is not. Memory: a copy of the parameters. Cost for P bytes of fp32
/// parameters and N ranks: each rank sends 2P(N-1)/N.
class MeanParameters {
 public:
  MeanParameters(const std::vector<bucket::FlatParameters*>& buffers, const comm::Group& ranks);
  ~MeanParameters();
  MeanParameters(const MeanParameters&) = delete;
  MeanParameters& operator=(const MeanParameters&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> own_; // flat parameters and their copies
};

} // namespace trireme::parallel
