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

/// Options of a FlatParameters on rank `rank` of `size`.
struct FlatOptions {
  int rank = 0;
  int size = 1;
  /// Another rank has the same shards, and that rank counts them in the norm and saves them.
  bool is_repeated = false;
  /// Where the flat buffers are; absent: where the parameters are. Parameters of another device are copied there one by
  /// one; not with sharded parameters.
  std::optional<at::Device> device = std::nullopt;
  /// Each rank keeps only its shard of the gradients.
  bool shard_gradients = false;
  /// Each rank keeps only its shard of the parameters of units.
  bool shard_parameters = false;
  /// The unit of a parameter (TensorInfo::unit); with sharded parameters only.
  std::function<int64_t(const at::Tensor&)> unit_of = nullptr;
  /// Type in which gradients are summed; absent: that of the parameters.
  std::optional<at::ScalarType> gradient_type = std::nullopt;
  /// Parameters for which this is true get one buffer each, after the others, and start at its beginning.
  std::function<bool(const at::Tensor&)> alone = nullptr;
  /// TensorInfo::placement of a parameter; absent: every rank has every parameter in full.
  std::function<Placement(const std::string& name, const at::Tensor&)> placement_of = nullptr;
  /// Keeps the shards of sharded parameters; null: they are in memory.
  std::shared_ptr<StateStore> parameter_store = nullptr;
  /// Keeps the shards of sharded gradients.
  std::shared_ptr<StateStore> gradient_store = nullptr;
  /// TensorInfo::place of each parameter; empty: these are all parameters of the model.
  std::vector<int64_t> places = {};
  /// Reuses the memory of released buckets; keeps about three buckets of it.
  bool keep_spare_memory = true;
};

/// Parameters of one kind (dtype, device, reduce group) moved into one flat
/// buffer, with a second buffer of the same layout for their gradients.
///
/// The order is fixed: the reverse of the list given, parameters of a unit adjacent, units first. It depends only on
/// the model and its units, so it is the same on all ranks, in every step and after every resume. After construction
/// `param.data` of every parameter is a view of flat_data().
/// Gradients: attach_grad(i) makes `param.grad` a view of flat_grad() and copies what autograd put in other memory.
/// After clear_grads(), which drops gradients without touching memory, autograd gives a new tensor in the first
/// backward. Copying it once is half the traffic of zeroing and adding.
///
/// Sharded gradients have no second buffer: a bucket's gradients have memory only until this rank's shard is taken
/// (GradientShards). Sharded parameters of units work the same (ParameterShards).
class FlatParameters {
 public:
  /// Sharded parameters keep their memory until move_in(), so that no rank ever needs all of them. Throws Error if
  /// dtypes, devices or reduce groups differ.
  FlatParameters(NamedTensors parameters, const LayoutOptions& options, const Allocate& allocate,
                 const FlatOptions& flat_options = {});

  const FlatLayout& layout() const { return layout_; }
  /// Each rank's equal part of each bucket. Shards use it, and the gradient norm uses it even if nothing is sharded.
  const ShardPlan& plan() const { return plan_; }
  int64_t count() const { return static_cast<int64_t>(parameters_.size()); }
  at::Tensor& parameter(int64_t i) { return parameters_[i]; }
  const std::string& name(int64_t i) const { return layout_.tensors()[i].name; }
  at::ScalarType scalar_type() const { return parameters_.front().scalar_type(); }
  at::ScalarType gradient_type() const { return gradient_type_; }
  /// Placement::reduce_group of these parameters.
  int reduce_group() const { return layout_.tensors().front().placement.reduce_group; }
  at::Device device() const { return parameters_.front().device(); }
  /// [layout().numel()]; undefined if parameters are sharded.
  const at::Tensor& flat_data() const { return flat_data_; }
  /// The first parameter whose data is no longer a view of this memory because the program called set_data(). Call it
  /// only after sharded parameters were moved in.
  std::optional<int64_t> moved_away() const;
  /// The parameters of bucket `b`, [bucket numel]. Sharded: memory to gather them into; the parameters use it after
  /// publish().
  at::Tensor bucket_data(int64_t b);
  /// Sharded parameters: makes the parameters of bucket `b` views of bucket_data(b), until release().
  void publish(int64_t b);
  /// Sharded parameters, for a bucket that is not gathered and that this rank owns in full: makes the parameters views
  /// of `part`, owned_data() of the bucket, until release(), without a copy.
  void show_owned_data(int64_t b, const at::Tensor& part) { data_shards_->show_part(b, part); }
  /// Gives these parameters their own memory. Changes to it are lost, as those of a gathered bucket are.
  void detach_owned_data(int64_t b) { data_shards_->detach_part(b); }
  /// Elements `range` (of the flat buffer) of the parameters, read-only. They lie in bucket `b`; sharded, they are this
  /// rank's.
  at::Tensor owned_data(int64_t b, const Range& range) const;
  /// Calls f with them; f may change them.
  void modify_owned_data(int64_t b, const Range& range, const std::function<void(const at::Tensor&)>& f);
  /// Calls f with them on the parameters' device, also for a bucket with keeps_on_host(): see
  /// ParameterShards::with_owned_on_device().
  void with_owned_on_device(int64_t b, const Range& range, bool modifies,
                            const std::function<void(const at::Tensor&)>& f);
  /// Prefetches this rank's shard of bucket `b`.
  void prefetch_data(int64_t b) const;
  void prefetch_grad(int64_t b) const;
  /// FlatOptions::is_repeated.
  bool is_repeated() const { return options_.is_repeated; }
  bool parameters_are_sharded() const { return data_shards_ != nullptr; }
  /// Whether every rank always has all values of bucket `b`.
  bool is_replicated(int64_t b) const { return !data_shards_ || data_shards_->is_replicated(b); }
  /// Whether the bucket's owned_data() is a shard in host memory although the parameters are on a device.
  bool keeps_on_host(int64_t b) const { return data_shards_ && data_shards_->keeps_on_host(b); }
  /// Copies all of the owned_data() of such a bucket to `to` on the device, on the current stream.
  void copy_to_device(int64_t b, const at::Tensor& to) { data_shards_->copy_to_device(b, to); }
  /// The stream on which such shards are copied to the device.
  c10::Stream shard_stream() const { return data_shards_->coming_stream(); }
  bool is_gathered(int64_t b) const { return !data_shards_ || data_shards_->is_gathered(b); }
  /// Sharded parameters, once per bucket: copies the bucket's parameters in and leaves the bucket gathered. Call
  /// update_shard() after it, or after any other change of the gathered bucket; release() frees the memory.
  void move_in(int64_t b);
  void update_shard(int64_t b);
  void release(int64_t b);
  /// The parts of sharded parameters in this rank's part of bucket `b`; empty if the bucket is replicated.
  std::vector<TensorRange> sharded_pieces(int64_t b) const;
  /// Calls visit(number, values) for each of them; with `modifies` it may change the values. The values are valid
  /// during the call.
  void visit_sharded(int64_t b, const std::function<void(size_t number, const at::Tensor& values)>& visit,
                     bool modifies) const;
  /// Does so for all buckets in turn: visit(i, begin, values). It may change the values.
  void for_each_sharded(const std::function<void(int64_t i, int64_t begin, const at::Tensor& values)>& visit) const;
  /// The file range of this rank's part of a bucket that is not replicated (StateStore::extent).
  std::optional<Extent> sharded_extent(int64_t b) const;
  /// [layout().numel()]; undefined if gradients are sharded.
  const at::Tensor& flat_grad() const { return flat_grad_; }
  /// The gradients of bucket `b`, [bucket numel].
  at::Tensor bucket_grad(int64_t b);
  /// Elements `range` (of the flat buffer) of the gradients. They lie in bucket `b`; sharded, they are this rank's.
  at::Tensor owned_grad(int64_t b, const Range& range) const;
  /// The end of the contiguous gradients of bucket `b` that begin at element `at` of the flat buffer. owned_grad()
  /// copies a range that lies in several chunks of a store.
  int64_t grad_chunk_end(int64_t b, int64_t at) const;
  bool gradients_are_sharded() const { return grad_shards_ != nullptr; }
  /// Sends gradients of these buckets to the host from now on; call it before the first backward. Sharded ones that are
  /// summed there are sent as they are accumulated, others by send_gradient().
  void bring_gradients_to_host(HostGradientOptions options);
  /// Null: no gradients are sent to the host.
  HostGradients* host_gradients() const { return host_gradients_.get(); }
  /// Bucket `b` is final on the device: starts to copy its gradients to the host, unless they are being copied or stay
  /// on the device.
  void send_gradient(int64_t b);
  /// Bucket `b` has been reduced: takes this rank's shard and drops the rest.
  void accumulate(int64_t b);

  void attach_grad(int64_t i);
  /// For a parameter that got no gradient: attaches zeros.
  void attach_zero_grad(int64_t i);
  bool has_grad(int64_t i) const;
  /// Whether backward gave parameter i a gradient since clear_grads(); attached zeros do not count.
  bool was_used(int64_t i) const { return used_[i]; }
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
