#pragma once

#include <trireme/shards/data_parallel/mean_parameters.h>

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace trireme::engine {

struct Parts;

/// While it lives, a rank's model is the mean of the replicas, with the first one's module buffers
/// ("broadcast_buffers"). Then it is its own again. Collective at its begin. See
/// shards/data_parallel/mean_parameters.h.
class ReplicaMean {
 public:
  explicit ReplicaMean(const Parts& parts);
  ~ReplicaMean();
  ReplicaMean(const ReplicaMean&) = delete;
  ReplicaMean& operator=(const ReplicaMean&) = delete;

 private:
  parallel::MeanParameters parameters_;
  std::vector<std::pair<at::Tensor, at::Tensor>> own_buffers_; // the model's and copies of them
};

} // namespace trireme::engine
