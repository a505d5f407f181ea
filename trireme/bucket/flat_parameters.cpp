#include <trireme/bucket/flat_parameters.h>

#include <trireme/base/error.h>

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

namespace trireme::bucket {
namespace {

FlatLayout initial_layout(const NamedTensors& parameters, const LayoutOptions& options) {
  std::vector<TensorInfo> tensors;
  for (const auto& [name, parameter] : parameters) {
    tensors.push_back({name, parameter.sizes().vec()});
  }
  // Gradients become ready roughly in the reverse of the order of definition.
  std::vector<int64_t> order(tensors.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return FlatLayout(std::move(tensors), std::move(order), options);
}

} // namespace

FlatParameters::FlatParameters(NamedTensors parameters, const LayoutOptions& options, const Allocate& allocate)
    : allocate_(allocate) {
  if (parameters.empty()) {
    throw Error("bucket", "no parameter to train was given", "Is every parameter frozen (requires_grad false)?");
  }
  const at::Tensor& first = parameters.front().second;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.scalar_type() != first.scalar_type() || parameter.device() != first.device()) {
      throw Error("bucket", concat("parameter ", name, " is ", parameter.scalar_type(), " on ", parameter.device(), " but ",
                                   parameters.front().first, " is ", first.scalar_type(), " on ", first.device()));
    }
    parameters_.push_back(parameter);
  }
  LayoutOptions typed = options;
  typed.element_bytes = static_cast<int64_t>(first.element_size());
  adopt(initial_layout(parameters, typed));
}

// Plain tensors on the same memory, not views to autograd: optimizers detach gradients in place, which views refuse.
at::Tensor FlatParameters::view(const at::Tensor& flat, int64_t i, int64_t flat_begin) const {
  const at::AutoDispatchBelowADInplaceOrView no_view_tracking;
  const Slot& slot = layout_.slot_of(i);
  return flat.slice(0, slot.begin - flat_begin, slot.end - flat_begin).view(layout_.tensors()[i].sizes);
}

// Allocates buffers for `layout` and moves parameters and present gradients into them.
void FlatParameters::adopt(const FlatLayout& layout) {
  const torch::NoGradGuard no_grad;
  layout_ = layout;
  const at::ScalarType type = parameters_.front().scalar_type();
  flat_data_ = allocate_(layout_.numel(), type).zero_();
  if (shards_) {
    const ShardPlan before = shards_->plan();
    shard_gradients(ShardPlan(layout_, before.rank(), before.size(), before.sharded()));
  } else {
    riders_and_grad_ = allocate_(kRiders + layout_.numel(), type).zero_();
    flat_grad_ = riders_and_grad_.slice(0, kRiders);
    grad_views_.clear();
  }
  for (int64_t i = 0; i < count(); ++i) {
    if (!shards_) {
      grad_views_.push_back(view(flat_grad_, i));
    }
    at::Tensor data = view(flat_data_, i);
    data.copy_(parameters_[i].detach());
    parameters_[i].set_data(data);
    if (has_grad(i)) {
      attach_grad(i);
    }
  }
}

at::Tensor FlatParameters::bucket_grad(int64_t b) {
  if (shards_) {
    return shards_->bucket(b);
  }
  const Bucket& bucket = layout_.buckets()[b];
  return flat_grad_.slice(0, bucket.begin, bucket.end);
}

at::Tensor FlatParameters::owned_grad(int64_t b, const Range& range) const {
  return shards_ ? shards_->owned(b, range) : flat_grad_.slice(0, range.begin, range.end);
}

void FlatParameters::shard_gradients(const ShardPlan& plan) {
  const at::ScalarType type = parameters_.front().scalar_type();
  riders_and_grad_ = allocate_(kRiders, type).zero_();
  flat_grad_ = at::Tensor();
  grad_views_.clear();
  clear_grads();
  shards_ = std::make_unique<GradientShards>(layout_, plan, type, allocate_);
}

void FlatParameters::settle(int64_t b) {
  shards_->settle(b);
  const Bucket& bucket = layout_.buckets()[b];
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    parameters_[layout_.slots()[s].tensor].mutable_grad().reset(); // its memory belongs to the next bucket
  }
}

at::Tensor FlatParameters::grad_home(int64_t i) {
  if (!shards_) {
    return grad_views_[i];
  }
  const int64_t b = layout_.bucket_of(i);
  return view(shards_->bucket(b), i, layout_.buckets()[b].begin);
}

at::Tensor FlatParameters::bucket_grad_and_riders(int64_t b) const {
  const Bucket& bucket = layout_.buckets()[b];
  return riders_and_grad_.slice(0, b == 0 ? 0 : kRiders + bucket.begin, kRiders + bucket.end);
}

at::Tensor FlatParameters::riders() const {
  return riders_and_grad_.slice(0, 0, kRiders);
}

bool FlatParameters::has_grad(int64_t i) const {
  return parameters_[i].grad().defined();
}

void FlatParameters::attach_grad(int64_t i) {
  at::Tensor& grad = parameters_[i].mutable_grad();
  at::Tensor home = grad_home(i);
  if (grad.const_data_ptr() != home.const_data_ptr()) {
    const torch::NoGradGuard no_grad;
    home.copy_(grad.detach());
    grad = home;
  }
}

void FlatParameters::attach_zero_grad(int64_t i) {
  const torch::NoGradGuard no_grad;
  at::Tensor home = grad_home(i);
  home.zero_();
  parameters_[i].mutable_grad() = home;
}

void FlatParameters::clear_grads() {
  for (at::Tensor& parameter : parameters_) {
    parameter.mutable_grad().reset();
  }
  if (shards_) {
    shards_->start_over();
  }
}

void FlatParameters::reorder(const std::vector<int64_t>& order) {
  const at::Tensor riding = riders();
  adopt(FlatLayout(layout_.tensors(), order, layout_.options()));
  riders().copy_(riding);
}

at::Tensor relayout(const at::Tensor& flat, const FlatLayout& from, const FlatLayout& to, const Allocate& allocate) {
  const torch::NoGradGuard no_grad;
  at::Tensor moved = allocate(to.numel(), flat.scalar_type()).zero_();
  for (int64_t i = 0; i < static_cast<int64_t>(to.tensors().size()); ++i) {
    const Slot& source = from.slot_of(i);
    const Slot& target = to.slot_of(i);
    moved.slice(0, target.begin, target.end).copy_(flat.slice(0, source.begin, source.end));
  }
  return moved;
}

} // namespace trireme::bucket
