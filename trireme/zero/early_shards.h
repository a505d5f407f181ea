#pragma once

#include <trireme/bucket/flatten.h>
#include <trireme/bucket/state_store.h>
#include <trireme/comm/group.h>

#include <memory>

namespace torch::nn {
class Module;
}

namespace trireme::zero {

/// The parameters of one module that has just been built, sharded at once, so that a model larger than a rank's memory
/// can be built part by part: what zero::Init does for modules that are Sharded, and the engine for the layers of a
/// list.
///
/// Rank 0's values become everybody's. Collective, as gather() is. The shards are in `store`, or on the module's
/// device.
class EarlyShards {
 public:
  EarlyShards(const torch::nn::Module& module, const comm::Group& group,
              std::shared_ptr<bucket::StateStore> store = nullptr);
  /// Makes the parameters whole again.
  void gather();

 private:
  comm::Group group_;
  bucket::FlatBuffers buffers_; // one bucket each
};

} // namespace trireme::zero
