#pragma once

#include <trireme/comm/group.h>
#include <trireme/shards/bucket/flatten.h>
#include <trireme/shards/bucket/state_store.h>

#include <memory>

namespace torch::nn {
class Module;
}

namespace trireme::zero {

/// Shards the parameters of a module as soon as it is built, so that a model larger than a rank's memory can be
/// built module by module. Class zero::Init uses it for modules that are Sharded, and the engine for the layers of a
/// list.
///
/// Broadcasts rank 0's values. Collective, as gather() is. The shards are in `store`, or on the module's
/// device.
class EarlyShards {
 public:
  EarlyShards(const torch::nn::Module& module, const comm::Group& group,
              std::shared_ptr<bucket::StateStore> store = nullptr);
  /// Gathers the full parameters again.
  void gather();

 private:
  comm::Group group_;
  bucket::FlatBuffers buffers_; // one bucket each
};

} // namespace trireme::zero
