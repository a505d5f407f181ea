#pragma once

#include <trireme/bucket/flat_parameters.h>
#include <trireme/comm/group.h>

#include <cstdint>
#include <vector>

namespace trireme::zero {

/// Brings parameters that each rank has stepped a shard of to all ranks, bucket by bucket, while later buckets are still being stepped.
///
/// Cost: P(N-1)/N bytes sent a rank for P bytes of parameters.
class ParameterGather {
 public:
  /// The buffers must outlive it.
  ParameterGather(std::vector<bucket::FlatParameters*> buffers, comm::Group group) : buffers_(std::move(buffers)), group_(std::move(group)) {}

  /// Begins one bucket; not one that is gathered where it is used (ParameterCoordinator). Every rank begins the same buckets in the same order.
  void start(int64_t buffer, int64_t bucket);
  /// Returns when all that has begun is there.
  void finish();
  /// Time spent in finish() so far: communication that stepping did not hide.
  double exposed_seconds() const {
    return exposed_;
  }

 private:
  std::vector<bucket::FlatParameters*> buffers_;
  comm::Group group_;
  std::vector<comm::Work> works_;
  double exposed_ = 0;
};

} // namespace trireme::zero
