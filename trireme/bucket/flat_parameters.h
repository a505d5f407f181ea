#pragma once

#include <trireme/bucket/flat_layout.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
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
  /// [layout().numel()]
  const at::Tensor& flat_grad() const {
    return flat_grad_;
  }
  /// The gradients of bucket `b` as one tensor; the riders come first in that of bucket 0.
  at::Tensor bucket_grad(int64_t b) const;
  /// [kRiders]
  at::Tensor riders() const;

  void attach_grad(int64_t i);
  /// For a parameter that got no gradient at all: attaches zeros.
  void attach_zero_grad(int64_t i);
  bool has_grad(int64_t i) const;
  void clear_grads();

  /// Moves everything into a new order (ready order learned in the first step).
  void reorder(const std::vector<int64_t>& order);

 private:
  at::Tensor view(const at::Tensor& flat, int64_t i) const;
  void adopt(const FlatLayout& layout);

  std::vector<at::Tensor> parameters_;
  Allocate allocate_;
  FlatLayout layout_;
  at::Tensor flat_data_;
  at::Tensor riders_and_grad_;
  at::Tensor flat_grad_;
  std::vector<at::Tensor> grad_views_;
};

/// Copies a buffer laid out as `from` into a new one laid out as `to` (same tensors).
at::Tensor relayout(const at::Tensor& flat, const FlatLayout& from, const FlatLayout& to, const Allocate& allocate);

} // namespace trireme::bucket
