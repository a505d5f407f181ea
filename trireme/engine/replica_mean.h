#pragma once

#include <trireme/shards/data_parallel/mean_parameters.h>

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace trireme::engine {

struct Parts;

/// Makes a rank's model the mean of the replicas during its lifetime, with the first replica's module buffers
/// ("broadcast_buffers"), then restores it. Collective at its begin. See shards/data_parallel/mean_parameters.h.
class ReplicaMean {
 public:
  explicit ReplicaMean(const Parts& parts);
  ~ReplicaMean();
  ReplicaMean(const ReplicaMean&) = delete;
  ReplicaMean& operator=(const ReplicaMean&) = delete;

 private:
  parallel::MeanParameters parameters_;
  std::vector<std::pair<at::Tensor, at::Tensor>> own_buffers_; // the model's, and copies of them
};

} // namespace trireme::engine
