#pragma once

#include <trireme/shards/bucket/gradient_shards.h>
#include <trireme/shards/bucket/parameter_shards.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::bucket {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// How a FlatParameters keeps what it has, on this rank, one of `size`.
struct FlatOptions {
  int rank = 0;
  int size = 1;
  /// Another rank has the same shards, counts them in the norm and saves them.
  bool is_repeated = false;
  /// Each rank keeps only its shard of the gradients.
  bool shard_gradients = false;
  /// The same for the parameters of units.
  bool shard_parameters = false;
  /// The unit of a parameter (TensorInfo::unit); with sharded parameters only.
  std::function<int64_t(const at::Tensor&)> unit_of = nullptr;
  /// Gradients are added up in this type; absent: the parameters'.
  std::optional<at::ScalarType> gradient_type = std::nullopt;
  /// Parameters that get a buffer each, after the others, and lie at its beginning.
  std::function<bool(const at::Tensor&)> alone = nullptr;
  /// TensorInfo::placement of a parameter; absent: every rank has all of each.
  std::function<Placement(const std::string& name, const at::Tensor&)> placement_of = nullptr;
  /// Where the shards of sharded parameters are; null: in memory.
  std::shared_ptr<StateStore> parameter_store = nullptr;
  /// The same of sharded gradients.
  std::shared_ptr<StateStore> gradient_store = nullptr;
  /// TensorInfo::place of each parameter; empty: these are all parameters of the model.
  std::vector<int64_t> places = {};
  /// Memory of buckets that are not there is kept for the next ones, about three buckets of it.
  bool keep_spare_memory = true;
};

/// Parameters of one kind (dtype, device, reduce group) moved into one flat
/// buffer, with a second buffer of the same layout for their gradients.
///
/// The order is fixed: the reverse of the list that is given, with the parameters of a unit together, units first. It
/// depends on the model and its units alone, so it is the same on all ranks, in every step and after every resume.
/// After construction `param.data` of every parameter is a view into flat_data().
/// Gradients: attach_grad(i) makes `param.grad` a view into flat_grad(), moving
/// over what autograd may have put elsewhere. clear_grads() forgets gradients without
/// touching memory: autograd then hands over a fresh tensor in the first backward,
/// which attach_grad copies once - half the traffic of zeroing and adding.
/// With sharded gradients there is no second buffer: gradients have memory bucket by bucket, and this rank's shard is
/// all that stays (GradientShards). With sharded parameters the same holds for the units' parameters (ParameterShards).
class FlatParameters {
 public:
  /// With sharded parameters they stay where they are until move_in(), so that no rank ever needs all of them.
  /// Throws Error when dtypes, devices or reduce groups differ.
  FlatParameters(NamedTensors parameters, const LayoutOptions& options, const Allocate& allocate,
                 const FlatOptions& flat_options = {});

  const FlatLayout& layout() const {
    return layout_;
  }
  /// The equal part of each bucket that each rank has, where something is sharded, and sums up for the norm everywhere.
  const ShardPlan& plan() const {
    return plan_;
  }
  int64_t count() const {
    return static_cast<int64_t>(parameters_.size());
  }
  at::Tensor& parameter(int64_t i) {
    return parameters_[i];
  }
  const std::string& name(int64_t i) const {
    return layout_.tensors()[i].name;
  }
  at::ScalarType scalar_type() const {
    return parameters_.front().scalar_type();
  }
  at::ScalarType gradient_type() const {
    return gradient_type_;
  }
  /// Placement::reduce_group of all of them.
  int reduce_group() const {
    return layout_.tensors().front().placement.reduce_group;
  }
  at::Device device() const {
    return parameters_.front().device();
  }
  /// [layout().numel()]; undefined when parameters are sharded.
  const at::Tensor& flat_data() const {
    return flat_data_;
  }
  /// The first parameter whose data is no view of this memory any more: a program has called set_data(). Not before
  /// sharded parameters have moved in.
  std::optional<int64_t> moved_away() const;
  /// The parameters of bucket `b`, [bucket numel]. Sharded: memory to gather them into; the parameters use it after
  /// publish().
  at::Tensor bucket_data(int64_t b);
  /// For sharded parameters: makes the parameters of bucket `b` views of bucket_data(b), until release().
  void publish(int64_t b);
  /// For sharded parameters of a bucket that is not gathered, and of which this rank has all: makes them views of
  /// `part`, owned_data() of the bucket, until release(), without a copy.
  void show_owned_data(int64_t b, const at::Tensor& part) {
    data_shards_->show_part(b, part);
  }
  /// Gives them memory of their own: what is changed in it is lost, as of a bucket that was gathered.
  void detach_owned_data(int64_t b) {
    data_shards_->detach_part(b);
  }
  /// Elements `range` (of the flat buffer) of the parameters, which lie in bucket `b` and, when they are sharded, are
  /// this rank's; to be read.
  at::Tensor owned_data(int64_t b, const Range& range) const;
  /// Calls f with them, to be changed.
  void modify_owned_data(int64_t b, const Range& range, const std::function<void(const at::Tensor&)>& f);
  /// Calls f with them on the parameters' device, also those of a bucket that keeps_on_host(): see
  /// ParameterShards::with_owned_on_device().
  void with_owned_on_device(int64_t b, const Range& range, bool modifies,
                            const std::function<void(const at::Tensor&)>& f);
  /// Say that this rank's shard of bucket `b` is needed soon.
  void prefetch_data(int64_t b) const;
  void prefetch_grad(int64_t b) const;
  /// FlatOptions::is_repeated.
  bool is_repeated() const {
    return options_.is_repeated;
  }
  bool parameters_are_sharded() const {
    return data_shards_ != nullptr;
  }
  /// Whether bucket `b` has the values of all ranks at all times.
  bool is_replicated(int64_t b) const {
    return !data_shards_ || data_shards_->is_replicated(b);
  }
  /// Whether owned_data() of the bucket is in the host's memory although the parameters are on a device: a shard of
  /// them.
  bool keeps_on_host(int64_t b) const {
    return data_shards_ && data_shards_->keeps_on_host(b);
  }
  /// Copies owned_data() of such a bucket, all of it, to `to` on the device, on the current stream.
  void copy_to_device(int64_t b, const at::Tensor& to) {
    data_shards_->copy_to_device(b, to);
  }
  /// The stream on which such shards come to the device.
  c10::Stream shard_stream() const {
    return data_shards_->coming_stream();
  }
  bool is_gathered(int64_t b) const {
    return !data_shards_ || data_shards_->is_gathered(b);
  }
  /// For sharded parameters, once for each bucket: copies the bucket's parameters in and leaves the bucket gathered.
  /// Call update_shard() after it, or after any other change of the gathered bucket; release() frees the memory.
  void move_in(int64_t b);
  void update_shard(int64_t b);
  void release(int64_t b);
  /// What of sharded parameters lies in this rank's part of bucket `b`; none if it is replicated.
  std::vector<TensorRange> sharded_pieces(int64_t b) const;
  /// Calls visit(number, values) for each of them; with `modifies` it may change the values. They have memory for the
  /// time of the call.
  void visit_sharded(int64_t b, const std::function<void(size_t number, const at::Tensor& values)>& visit,
                     bool modifies) const;
  /// The same for all buckets, one after the other: visit(i, begin, values). It may change the values.
  void for_each_sharded(const std::function<void(int64_t i, int64_t begin, const at::Tensor& values)>& visit) const;
  /// Where this rank's part of a bucket that is not replicated lies in a file (StateStore::extent).
  std::optional<Extent> sharded_extent(int64_t b) const;
  /// [layout().numel()]; undefined when gradients are sharded.
  const at::Tensor& flat_grad() const {
    return flat_grad_;
  }
  /// The gradients of bucket `b`, [bucket numel].
  at::Tensor bucket_grad(int64_t b);
  /// Elements `range` (of the flat buffer) of the gradients, which lie in bucket `b` and, when they are sharded, are
  /// this rank's.
  at::Tensor owned_grad(int64_t b, const Range& range) const;
  /// How far gradients of bucket `b` lie together from element `at` of the flat buffer on: owned_grad() copies what
  /// lies in several chunks of a store.
  int64_t grad_chunk_end(int64_t b, int64_t at) const;
  bool gradients_are_sharded() const {
    return grad_shards_ != nullptr;
  }
  /// From now on gradients of these buckets go to the host, before the first backward: those that are sharded and added
  /// up there as they are accumulated, others when send_gradient() says so.
  void bring_gradients_to_host(HostGradientOptions options);
  /// Null: none do.
  HostGradients* host_gradients() const {
    return host_gradients_.get();
  }
  /// Bucket `b` is final on the device: starts to bring its gradients to the host, unless they are on their way or do
  /// not go there.
  void send_gradient(int64_t b);
  /// Bucket `b` has been reduced: takes this rank's shard and forgets the rest.
  void accumulate(int64_t b);

  void attach_grad(int64_t i);
  /// For a parameter that got no gradient at all: attaches zeros.
  void attach_zero_grad(int64_t i);
  bool has_grad(int64_t i) const;
  /// Whether backward gave parameter i a gradient since clear_grads(); zeros that were attached do not count.
  bool was_used(int64_t i) const {
    return used_[i];
  }
  void clear_grads();

 private:
  at::Tensor view(const at::Tensor& flat, int64_t i, int64_t flat_begin = 0) const;
  at::Tensor grad_home(int64_t i);
  void allocate_gradients();

  std::vector<at::Tensor> parameters_;
  std::vector<bool> used_;
  Allocate allocate_;
  FlatOptions options_;
  at::ScalarType gradient_type_;
  FlatLayout layout_;
  ShardPlan plan_;
  std::shared_ptr<MemoryPool> pool_;
  std::unique_ptr<ParameterShards> data_shards_;
  at::Tensor flat_data_;
  at::Tensor flat_grad_;
  std::vector<at::Tensor> grad_views_; // of flat_grad_
  std::unique_ptr<HostGradients> host_gradients_;
  std::unique_ptr<GradientShards> grad_shards_;
};

} // namespace trireme::bucket
