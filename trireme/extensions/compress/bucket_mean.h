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

/// The place of a bucket, and who shares it.
struct BucketPlace {
  bucket::FlatParameters* flat = nullptr;
  int64_t buffer = 0; // its number
  int64_t bucket = 0;
  comm::Group ranks; // that add it up

  const bucket::Bucket& layout() const {
    return flat->layout().buckets()[bucket];
  }
  int64_t numel() const {
    return layout().numel();
  }
  /// Calls f for each parameter with its elements, counted from the beginning of the bucket.
  void for_each_slot(const std::function<void(const bucket::Slot& slot, const comm::Stretch& in_bucket)>& f) const;
  const bucket::TensorInfo& tensor(const bucket::Slot& slot) const {
    return flat->layout().tensors()[slot.tensor];
  }
};

/// The mean over the ranks of one number for each element of a bucket, compressed, with the errors that are made good
/// in the next round. Scales and largest elements are of one parameter; gaps between parameters are not sent. Among one
/// rank nothing is exchanged or lost. Of all ranks the rounds and their steps are the same, in the same order.
class BucketMean {
 public:
  virtual ~BucketMean() = default;
  /// What the round leaves out: a parameter's number in the buffer -> whether its numbers, and its errors, stay as they
  /// are.
  using LeftOut = std::function<bool(int64_t parameter)>;

  /// Takes in `x`, fp32 [numel of the bucket], and starts the round; `x` belongs to it until finish(), which makes it
  /// the mean.
  virtual void start(const at::Tensor& x, const LeftOut& left_out) = 0;
  /// Between them, when other rounds have been started: half of the way. May be left out.
  virtual void turn() {}
  virtual void finish() = 0;

  /// Whether a round may also be one without a tensor of its own, by the functions of comm::CompressedAllReduce, which
  /// see the elements of what is not left out.
  virtual bool by_stretches() const {
    return false;
  }
  virtual void start(const comm::AddNumbers& add, const LeftOut& left_out);
  virtual void finish(const comm::TakeMeans& take);
  /// Bytes that this rank has sent in the last round.
  virtual int64_t sent() const = 0;

  /// Begins at zero.
  virtual void forget_errors() = 0;
  /// No error for elements where `alive` [numel], uint8, is 0.
  virtual void clear_errors(const at::Tensor& alive) = 0;
  /// What is sent from now on is `factor` [numel] times as large: and so are the errors.
  virtual void scale_errors(const at::Tensor& factor) = 0;
  /// For SyncState::for_each_state(): "worker_error_R" of rank R and "server_error"; PowerSGD: "worker_error_R" and
  /// "power_sgd_R", by name_of_part().
  virtual void for_each_state(const parallel::SyncState::Visit& visit) = 0;
};

std::unique_ptr<BucketMean> compressed_mean(BucketPlace place, std::shared_ptr<const comm::Compressor> compressor);
/// Parameters of two and more dimensions are matrices of as many rows as the first has.
std::unique_ptr<BucketMean> power_sgd_mean(BucketPlace place, int64_t rank);
std::unique_ptr<BucketMean> mean_of(BucketPlace place, const GradientCompressionOptions& options);

/// What a state of `tensor` is called that each tensor rank, and each tile, has for its own part: "state" of a whole
/// parameter, "state.64_0" of the box at [64, 0].
std::string name_of_part(const std::string& state, const bucket::TensorInfo& tensor);
/// That state, for SyncState::for_each_state(): of these sizes, which have no place in the whole parameter.
bucket::TensorInfo of_part(const bucket::TensorInfo& tensor, std::vector<int64_t> sizes);

/// The elements that both have.
comm::Stretch overlap(const comm::Stretch& a, const comm::Stretch& b);
/// Elements of a tensor whose first is number `first`.
at::Tensor part(const at::Tensor& of, const comm::Stretch& elements, int64_t first = 0);

} // namespace trireme::compress
