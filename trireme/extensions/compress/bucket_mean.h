#pragma once

#include <trireme/comm/group.h>
#include <trireme/config/compression_options.h>
#include <trireme/extensions/compress/compressors/compressed_all_reduce.h>
#include <trireme/shards/bucket/flat_parameters.h>
#include <trireme/shards/data_parallel/sync_roles.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::compress {

/// A bucket, and the ranks that sum it.
struct BucketPlace {
  bucket::FlatParameters* flat = nullptr;
  int64_t buffer = 0; // index of the buffer
  int64_t bucket = 0;
  comm::Group ranks; // that sum the bucket

  const bucket::Bucket& layout() const { return flat->layout().buckets()[bucket]; }
  int64_t numel() const { return layout().numel(); }
  /// Calls f for each parameter with its elements, counted from the beginning of the bucket.
  void for_each_slot(const std::function<void(const bucket::Slot& slot, const comm::Stretch& in_bucket)>& f) const;
  const bucket::TensorInfo& tensor(const bucket::Slot& slot) const { return flat->layout().tensors()[slot.tensor]; }
};

/// Computes the compressed mean over the ranks of one number per element of a bucket, with error feedback to the next
/// round. Scales and largest elements belong to one parameter; gaps between parameters are not sent. A single rank
/// exchanges nothing and loses nothing. All ranks run the same rounds and steps in the same order.
class BucketMean {
 public:
  virtual ~BucketMean() = default;
  /// Tells whether a round leaves out a parameter, by its index in the buffer: its numbers and errors then do not
  /// change.
  using LeftOut = std::function<bool(int64_t parameter)>;

  /// Starts a round with `x`, fp32 [numel of the bucket]. The round owns `x` until finish(), which replaces it by the
  /// mean.
  virtual void start(const at::Tensor& x, const LeftOut& left_out) = 0;
  /// Optional call between start() and finish(), after other rounds have been started: sends the second half.
  virtual void turn() {}
  virtual void finish() = 0;

  /// True if a round can run without a tensor of its own, with the functions of comm::CompressedAllReduce. They receive
  /// the elements that are not left out.
  virtual bool by_stretches() const { return false; }
  virtual void start(const comm::AddNumbers& add, const LeftOut& left_out);
  virtual void finish(const comm::TakeMeans& take);
  /// Bytes that this rank sent in the last round.
  virtual int64_t sent() const = 0;

  /// Resets the errors to zero.
  virtual void forget_errors() = 0;
  /// Zeroes the errors of elements for which `alive` [numel], uint8, is 0.
  virtual void clear_errors(const at::Tensor& alive) = 0;
  /// Multiplies the errors by `factor` [numel], because later numbers are larger by that factor.
  virtual void scale_errors(const at::Tensor& factor) = 0;
  /// Visits states for SyncState::for_each_state(): "worker_error_R" of rank R and "server_error". With PowerSGD:
  /// "worker_error_R" and "power_sgd_R", named by name_of_part().
  virtual void for_each_state(const parallel::SyncState::Visit& visit) = 0;
};

std::unique_ptr<BucketMean> compressed_mean(BucketPlace place, std::shared_ptr<const comm::Compressor> compressor);
/// Treats parameters of two or more dimensions as matrices with the rows of their first dimension.
std::unique_ptr<BucketMean> power_sgd_mean(BucketPlace place, int64_t rank);
std::unique_ptr<BucketMean> mean_of(BucketPlace place, const GradientCompressionOptions& options);

/// Returns the name of a state that each tensor rank and each tile has separately: "state" for a whole parameter,
/// "state.64_0" for the box at [64, 0].
std::string name_of_part(const std::string& state, const bucket::TensorInfo& tensor);
/// Describes such a state for SyncState::for_each_state(): it has `sizes`, and no place in the whole parameter.
bucket::TensorInfo of_part(const bucket::TensorInfo& tensor, std::vector<int64_t> sizes);

/// Returns the common elements.
comm::Stretch overlap(const comm::Stretch& a, const comm::Stretch& b);
/// Returns elements of a tensor whose first element has index `first`.
at::Tensor part(const at::Tensor& of, const comm::Stretch& elements, int64_t first = 0);

} // namespace trireme::compress
