#pragma once

#include <trireme/comm/group.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::parallel {

/// Makes a model's BatchNorm1d, 2d and 3d layers normalise over the ranks of a group while this object lives.
///
///   trireme::parallel::SyncedBatchNorms synced(*model, world.group());
///
/// In training, the forward of a converted layer becomes sync_batch_norm(); evaluation does not change. C++ models hold
/// layers as members of fixed types, so layers are not replaced. Instead, aten::batch_norm looks up whether its tensors
/// belong to a converted layer, from the first conversion on. Calls of at::batch_norm() with a converted layer's
/// tensors are synchronised too. Parameters and buffers must stay the same tensors; the model may be moved to another
/// device or type before or after.
///
/// Construction is collective and makes another group of the same ranks. A group of one changes nothing. libtorch still
/// requires two values per channel on each rank. Other norms (InstanceNorm, GroupNorm) do not change. Errors:
/// InputError for a layer that has neither weights nor running statistics, and for one that is already converted.
class SyncedBatchNorms {
 public:
  SyncedBatchNorms(torch::nn::Module& model, const comm::Group& ranks);
  /// Converts several modules: the layers of a pipeline's stage.
  SyncedBatchNorms(const std::vector<torch::nn::Module*>& modules, const comm::Group& ranks);
  ~SyncedBatchNorms();
  SyncedBatchNorms(SyncedBatchNorms&&) noexcept;
  SyncedBatchNorms& operator=(SyncedBatchNorms&&) noexcept;

  /// Returns the number of converted layers.
  int64_t size() const;
  /// Returns the group of the statistics' collectives.
  const comm::Group& group() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace trireme::parallel
