#include <trireme/shards/bucket/flat_parameters.h>

#include <trireme/base/error.h>
#include <trireme/device/move.h>
#include <trireme/device/zero_pages.h>
#include <trireme/shards/bucket/buffer_order.h>
#include <trireme/shards/bucket/state_store.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::bucket {
namespace {

FlatLayout layout_of(const NamedTensors& parameters, const LayoutOptions& options, const FlatOptions& flat_options) {
  std::vector<TensorInfo> tensors;
  for (const auto& [name, parameter] : parameters) {
    const size_t i = tensors.size();
    tensors.push_back({name, parameter.sizes().vec(),
                       flat_options.shard_parameters ? flat_options.unit_of(parameter) : TensorInfo::kNoUnit,
                       flat_options.places.empty() ? static_cast<int64_t>(i) : flat_options.places.at(i),
                       flat_options.placement_of ? flat_options.placement_of(name, parameter) : Placement{}});
  }
  std::vector<int64_t> order = buffer_order(tensors);
  return FlatLayout(std::move(tensors), std::move(order), options);
}

at::Tensor zeros_of(const Allocate& allocate, int64_t numel, at::ScalarType type) {
  const at::Tensor memory = allocate(numel, type);
  device::zero(memory);
  return memory;
}

// Bytes of spare memory for the parameters and gradients of some buckets. A much larger block is rare and is freed.
int64_t spare_bytes(const FlatLayout& layout) {
  return 3 * layout.numel() / static_cast<int64_t>(layout.buckets().size()) * layout.options().element_bytes;
}

} // namespace

FlatParameters::FlatParameters(NamedTensors parameters, const LayoutOptions& options, const Allocate& allocate,
                               const FlatOptions& flat_options)
    : allocate_(allocate), options_(flat_options) {
  if (parameters.empty()) {
    throw Error("bucket", "no parameter to train was given", "Is every parameter frozen (requires_grad false)?");
  }
  const at::Tensor& first = parameters.front().second;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.scalar_type() != first.scalar_type() || (!options_.device && parameter.device() != first.device())) {
      throw Error("bucket",
                  concat("parameter ", name, " is ", parameter.scalar_type(), " on ", parameter.device(), " but ",
                         parameters.front().first, " is ", first.scalar_type(), " on ", first.device()));
    }
    parameters_.push_back(parameter);
  }
  used_.resize(parameters_.size());
  gradient_type_ = options_.gradient_type.value_or(scalar_type());
  LayoutOptions typed = options;
  typed.element_bytes = static_cast<int64_t>(first.element_size());
  layout_ = layout_of(parameters, typed, options_);
  for (const TensorInfo& tensor : layout_.tensors()) {
    if (tensor.placement.reduce_group != reduce_group()) {
      throw Error("bucket", concat("parameter ", tensor.name, " has reduce group ", tensor.placement.reduce_group,
                                   " but ", name(0), " has ", reduce_group()));
    }
  }
  const bool alone =
      options_.alone && options_.alone(first); // one bucket as large as the tensor: do not keep its memory
  options_.unit_of = nullptr;                  // what these refer to may end before this object
  options_.alone = nullptr;
  options_.placement_of = nullptr;
  options_.places.clear();
  pool_ = std::make_shared<MemoryPool>(allocate_, alone || !options_.keep_spare_memory ? 0 : spare_bytes(layout_));
  const torch::NoGradGuard no_grad;
  plan_ = ShardPlan(layout_, options_.rank, options_.size, options_.size > 1);
  allocate_gradients();
  if (options_.shard_parameters) {
    if (!options_.parameter_store) {
      options_.parameter_store =
          make_memory_store([allocate = allocate_](int64_t numel, at::ScalarType type, at::Device) {
            return zeros_of(allocate, numel, type);
          });
    }
    data_shards_ = std::make_unique<ParameterShards>(layout_, plan_, scalar_type(), first.device(),
                                                     options_.parameter_store, pool_);
    return;
  }
  flat_data_ = zeros_of(allocate_, layout_.numel(), scalar_type());
  for (int64_t i = 0; i < count(); ++i) {
    at::Tensor data = view(flat_data_, i);
    data.copy_(parameters_[i].detach());
    if (parameters_[i].device() != data.device()) {
      device::replace_data(parameters_[i], data);
    }
    parameters_[i].set_data(data);
    if (has_grad(i)) {
      attach_grad(i);
    }
  }
}

// Plain tensors on the same memory, not autograd views: optimizers detach gradients in place, which views refuse.
at::Tensor FlatParameters::view(const at::Tensor& flat, int64_t i, int64_t flat_begin) const {
  const at::AutoDispatchBelowADInplaceOrView no_view_tracking;
  const Slot& slot = layout_.slot_of(i);
  return flat.slice(0, slot.begin - flat_begin, slot.end - flat_begin).view(layout_.tensors()[i].sizes);
}

void FlatParameters::allocate_gradients() {
  if (options_.shard_gradients) {
    clear_grads();
    grad_shards_ = std::make_unique<GradientShards>(layout_, plan_, gradient_type_, allocate_, pool_,
                                                    options_.gradient_store, options_.device.value_or(device()));
    return;
  }
  flat_grad_ = zeros_of(allocate_, layout_.numel(), gradient_type_);
  for (int64_t i = 0; i < count(); ++i) {
    grad_views_.push_back(view(flat_grad_, i));
  }
}

void FlatParameters::move_in(int64_t b) {
  const torch::NoGradGuard no_grad;
  publish(b);
  const Bucket& bucket = layout_.buckets()[b];
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    const int64_t i = layout_.slots()[s].tensor;
    at::Tensor data = data_shards_->view(i);
    data.copy_(parameters_[i].detach());
    parameters_[i].set_data(data);
  }
}

void FlatParameters::publish(int64_t b) {
  if (data_shards_) {
    data_shards_->publish(b);
  }
}

void FlatParameters::update_shard(int64_t b) {
  if (data_shards_) {
    data_shards_->update(b);
  }
}

void FlatParameters::release(int64_t b) {
  data_shards_->release(b);
}

void FlatParameters::prefetch_data(int64_t b) const {
  if (data_shards_) {
    data_shards_->prefetch(b);
  }
}

void FlatParameters::prefetch_grad(int64_t b) const {
  if (host_gradients_ && host_gradients_->has(b)) {
    host_gradients_->prefetch(b);
  } else if (grad_shards_) {
    grad_shards_->prefetch(b);
  }
}

std::vector<TensorRange> FlatParameters::sharded_pieces(int64_t b) const {
  return is_replicated(b) ? std::vector<TensorRange>() : layout_.pieces_in(b, plan_.mine(b));
}

void FlatParameters::visit_sharded(int64_t b, const std::function<void(size_t, const at::Tensor&)>& visit,
                                   bool modifies) const {
  const std::vector<TensorRange> pieces = sharded_pieces(b);
  if (pieces.empty()) {
    return;
  }
  data_shards_->with_owned(b, plan_.mine(b), modifies, [&](const at::Tensor& mine) {
    for (size_t number = 0; number < pieces.size(); ++number) {
      visit(number, mine.slice(0, pieces[number].first, pieces[number].first + pieces[number].numel));
    }
  });
}

void FlatParameters::for_each_sharded(const std::function<void(int64_t, int64_t, const at::Tensor&)>& visit) const {
  std::vector<std::pair<int64_t, std::vector<TensorRange>>> buckets;
  for (int64_t b = 0; b < std::ssize(layout_.buckets()); ++b) {
    if (std::vector<TensorRange> pieces = sharded_pieces(b); !pieces.empty()) {
      buckets.emplace_back(b, std::move(pieces));
    }
  }
  for (size_t k = 0; k < buckets.size(); ++k) {
    const auto& [b, pieces] = buckets[k];
    const auto visit_piece = [&, &pieces = pieces](size_t number, const at::Tensor& values) {
      if (number == 0 && k + 1 < buckets.size()) {
        prefetch_data(buckets[k + 1].first);
      }
      visit(pieces[number].i, pieces[number].begin, values);
    };
    visit_sharded(b, visit_piece, true);
  }
}

std::optional<Extent> FlatParameters::sharded_extent(int64_t b) const {
  return data_shards_->extent(b);
}

at::Tensor FlatParameters::bucket_data(int64_t b) {
  if (data_shards_) {
    return data_shards_->memory(b);
  }
  const Bucket& bucket = layout_.buckets()[b];
  return flat_data_.slice(0, bucket.begin, bucket.end);
}

std::optional<int64_t> FlatParameters::moved_away() const {
  for (int64_t i = 0; i < count(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    const bool in_memory =
        data_shards_ ? data_shards_->has(i, parameter)
                     : parameter.storage().unsafeGetStorageImpl() == flat_data_.storage().unsafeGetStorageImpl();
    // Another offset in the memory belongs to another parameter.
    const int64_t begin = layout_.slot_of(i).begin -
                          (data_shards_ ? layout_.buckets()[layout_.bucket_of(i)].begin : -flat_data_.storage_offset());
    if (!in_memory || parameter.storage_offset() != begin) {
      return i;
    }
  }
  return std::nullopt;
}

at::Tensor FlatParameters::owned_data(int64_t b, const Range& range) const {
  if (!data_shards_) {
    return flat_data_.slice(0, range.begin, range.end);
  }
  at::Tensor values;
  data_shards_->with_owned(b, range, false, [&](const at::Tensor& owned) { values = owned; });
  return values;
}

void FlatParameters::modify_owned_data(int64_t b, const Range& range, const std::function<void(const at::Tensor&)>& f) {
  if (data_shards_) {
    data_shards_->with_owned(b, range, true, f);
  } else {
    f(flat_data_.slice(0, range.begin, range.end));
  }
}

void FlatParameters::with_owned_on_device(int64_t b, const Range& range, bool modifies,
                                          const std::function<void(const at::Tensor&)>& f) {
  if (data_shards_) {
    data_shards_->with_owned_on_device(b, range, modifies, f);
  } else {
    f(flat_data_.slice(0, range.begin, range.end));
  }
}

at::Tensor FlatParameters::bucket_grad(int64_t b) {
  if (grad_shards_) {
    return grad_shards_->bucket(b);
  }
  const Bucket& bucket = layout_.buckets()[b];
  return flat_grad_.slice(0, bucket.begin, bucket.end);
}

at::Tensor FlatParameters::owned_grad(int64_t b, const Range& range) const {
  return grad_shards_ ? grad_shards_->owned(b, range) : flat_grad_.slice(0, range.begin, range.end);
}

int64_t FlatParameters::grad_chunk_end(int64_t b, int64_t at) const {
  return grad_shards_ ? grad_shards_->chunk_end(b, at) : layout_.buckets()[b].end;
}

void FlatParameters::bring_gradients_to_host(HostGradientOptions options) {
  options.add_up_there = options.add_up_there && gradients_are_sharded();
  host_gradients_ = std::make_unique<HostGradients>(std::move(options));
  if (host_gradients_->options().add_up_there) {
    grad_shards_->add_up_in(*host_gradients_);
  }
}

void FlatParameters::send_gradient(int64_t b) {
  if (host_gradients_ && host_gradients_->has(b) && !host_gradients_->was_sent(b)) {
    host_gradients_->send(b, owned_grad(b, host_gradients_->range(b)), /*adds=*/false);
  }
}

void FlatParameters::accumulate(int64_t b) {
  grad_shards_->accumulate(b);
  const Bucket& bucket = layout_.buckets()[b];
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    parameters_[layout_.slots()[s].tensor].mutable_grad().reset(); // its memory belongs to the next bucket
  }
}

at::Tensor FlatParameters::grad_home(int64_t i) {
  if (!grad_shards_) {
    return grad_views_[i];
  }
  const int64_t b = layout_.bucket_of(i);
  return view(grad_shards_->bucket(b), i, layout_.buckets()[b].begin);
}

bool FlatParameters::has_grad(int64_t i) const {
  return parameters_[i].grad().defined();
}

void FlatParameters::attach_grad(int64_t i) {
  used_[i] = true;
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
  used_.assign(parameters_.size(), false);
  if (grad_shards_) {
    grad_shards_->start_over();
  }
  if (host_gradients_) {
    host_gradients_->start_over();
  }
}

} // namespace trireme::bucket
