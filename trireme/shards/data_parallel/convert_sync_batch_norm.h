#pragma once

#include <trireme/comm/group.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::parallel {

/// Makes the BatchNorm1d, 2d and 3d of a model, as they are and where they are, normalise over the ranks of a group
/// while this lives.
///
///   trireme::parallel::SyncedBatchNorms synced(*model, world.group());
///
/// In training their forward is then sync_batch_norm(), see there; in evaluation nothing changes. Models of C++ have
/// their layers as members of a fixed type, so layers are not replaced: from the first conversion on, aten::batch_norm
/// looks up whose tensors it got, those of a converted layer or others. So calls of at::batch_norm() with a converted
/// layer's tensors are meant too. Works in any model in which parameters and buffers stay the same tensors; moving it
/// to another device or type may come before or after.
///
/// Construction is collective and makes a group of its own of the same ranks. A group of one changes nothing.
/// A layer still wants two values a channel on this rank: libtorch checks that before. Other norms (InstanceNorm,
/// GroupNorm) stay as they are. Errors: InputError for a layer without any tensors (neither affine nor with running
/// statistics), and for one that is converted already.
class SyncedBatchNorms {
 public:
  SyncedBatchNorms(torch::nn::Module& model, const comm::Group& ranks);
  /// Of several modules: the layers of a pipeline's stage.
  SyncedBatchNorms(const std::vector<torch::nn::Module*>& modules, const comm::Group& ranks);
  ~SyncedBatchNorms();
  SyncedBatchNorms(SyncedBatchNorms&&) noexcept;
  SyncedBatchNorms& operator=(SyncedBatchNorms&&) noexcept;

  /// How many layers were converted.
  int64_t size() const;
  /// The group for statistics.
  const comm::Group& group() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace trireme::parallel
