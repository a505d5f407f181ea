#pragma once

#include <trireme/bucket/gradient_shards.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::bucket {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Gives memory for a flat buffer: elements and type. Group::allocate is one.
using Allocate = std::function<at::Tensor(int64_t, at::ScalarType)>;

/// Parameters of one kind (dtype, device, hyper-parameters) moved into one flat
/// buffer, with a second buffer of the same layout for their gradients.
///
/// After construction `param.data` of every parameter is a view into flat_data().
/// Gradients: attach_grad(i) makes `param.grad` a view into flat_grad(), moving
/// over what autograd may have put elsewhere. clear_grads() forgets gradients without
/// touching memory: autograd then hands over a fresh tensor in the first backward,
/// which attach_grad copies once - half the traffic of zeroing and adding.
/// shard_gradients() gives the second buffer up: gradients then have memory bucket by bucket, and this rank's shard is all that stays.
/// Before the gradients lie kRiders spare elements that travel with the first
/// bucket: small sums (the loss) that would otherwise cost a collective of their own.
class FlatParameters {
 public:
  static constexpr int64_t kRiders = 16;

  /// Throws Error when dtypes or devices differ.
  FlatParameters(NamedTensors parameters, const LayoutOptions& options, const Allocate& allocate);

  const FlatLayout& layout() const {
    return layout_;
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
  /// [layout().numel()]
  const at::Tensor& flat_data() const {
    return flat_data_;
  }
  /// [layout().numel()]; undefined when gradients are sharded.
  const at::Tensor& flat_grad() const {
    return flat_grad_;
  }
  /// The gradients of bucket `b`, [bucket numel].
  at::Tensor bucket_grad(int64_t b);
  /// The same as one tensor with what rides before bucket 0. Not when gradients are sharded.
  at::Tensor bucket_grad_and_riders(int64_t b) const;
  /// Elements `range` (of the flat buffer) of the gradients, which lie in bucket `b` and, when they are sharded, are this rank's.
  at::Tensor owned_grad(int64_t b, const Range& range) const;
  /// [kRiders]
  at::Tensor riders() const;

  /// Keeps only what `plan` gives this rank (class GradientShards). Between steps: gradients are forgotten.
  void shard_gradients(const ShardPlan& plan);
  bool gradients_are_sharded() const {
    return shards_ != nullptr;
  }
  /// Bucket `b` has been reduced: takes this rank's shard and forgets the rest.
  void settle(int64_t b);

  void attach_grad(int64_t i);
  /// For a parameter that got no gradient at all: attaches zeros.
  void attach_zero_grad(int64_t i);
  bool has_grad(int64_t i) const;
  void clear_grads();

  /// Moves everything into a new order; gradients that are sharded are forgotten (ready order learned in the first step).
  void reorder(const std::vector<int64_t>& order);

 private:
  at::Tensor view(const at::Tensor& flat, int64_t i, int64_t flat_begin = 0) const;
  at::Tensor grad_home(int64_t i);
  void adopt(const FlatLayout& layout);

  std::vector<at::Tensor> parameters_;
  Allocate allocate_;
  FlatLayout layout_;
  at::Tensor flat_data_;
  at::Tensor riders_and_grad_;
  at::Tensor flat_grad_;
  std::vector<at::Tensor> grad_views_; // of flat_grad_
  std::unique_ptr<GradientShards> shards_;
};

/// Copies a buffer laid out as `from` into a new one laid out as `to` (same tensors).
at::Tensor relayout(const at::Tensor& flat, const FlatLayout& from, const FlatLayout& to, const Allocate& allocate);

} // namespace trireme::bucket
