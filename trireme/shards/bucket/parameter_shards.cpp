#include <trireme/shards/bucket/parameter_shards.h>

#include <trireme/base/error.h>
#include <trireme/device/absent_memory.h>
#include <trireme/shards/bucket/gradient_shards.h>
#include <trireme/shards/bucket/returning.h>
#include <trireme/shards/bucket/state_store.h>

#include <torch/utils.h>

#include <utility>

namespace trireme::bucket {
namespace {

c10::Stream returning_stream(at::Device device) {
  static device::KeptStreams streams;
  return streams.on(device);
}

void drop_tensor(void* tensor) {
  delete static_cast<at::Tensor*>(tensor);
}

} // namespace

ParameterShards::ParameterShards(const FlatLayout& layout, const ShardPlan& plan, at::ScalarType type,
                                 at::Device device, std::shared_ptr<StateStore> store, std::shared_ptr<MemoryPool> pool)
    : layout_(layout),
      plan_(plan),
      type_(type),
      device_(device),
      pool_(std::move(pool)),
      store_(std::move(store)),
      whole_(layout.buckets().size()),
      is_part_(layout.buckets().size(), false) {
  StoredArray shards{type, 0, {}};
  for (size_t b = 0; b < layout.buckets().size(); ++b) {
    const auto bucket = static_cast<int64_t>(b);
    shards.numel.push_back(is_replicated(bucket) ? 0 : plan_.mine(bucket).numel());
    // The storage has its full size even without memory, so that views can be made at any time.
    const size_t bytes = static_cast<size_t>(layout.buckets()[b].numel()) * c10::elementSize(type);
    storages_.emplace_back(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, device), nullptr,
                           /*resizable=*/false);
    if (is_replicated(bucket)) {
      publish(bucket);
    } else {
      empty_storage(bucket);
    }
  }
  if (!device.is_cpu()) {
    on_host_ = store_->on_host(shards.numel, device);
  }
  on_host_.resize(layout.buckets().size(), false);
  in_store_ = store_->add({shards}, device);
  store_->name_buckets(in_store_, layout.first_names());
}

// Parameters may outlive this object; they have no memory then. Waits for what the device still uses.
ParameterShards::~ParameterShards() {
  const auto wait = [](const device::Event& done) {
    try {
      if (!done.done()) {
        done.synchronize();
      }
    } catch (...) { // the device has failed: its work is over
    }
  };
  for (const Stepped& one : stepped_) {
    wait(*one.done);
  }
  for (const auto& [b, use] : uses_) {
    if (use.part.defined() || use.writes) {
      wait(*use.done);
    }
  }
}

c10::Stream ParameterShards::coming_stream() const {
  static device::KeptStreams streams;
  return streams.on(device_);
}

at::Tensor ParameterShards::memory(int64_t b) {
  const int64_t numel = layout_.buckets()[b].numel();
  if (!whole_[b].defined()) {
    whole_[b] = pool_->take(numel, type_);
  }
  return whole_[b].slice(0, 0, numel);
}

void ParameterShards::publish(int64_t b) {
  memory(b);
  c10::StorageImpl& storage = *storages_[b].unsafeGetStorageImpl();
  if (storage._mutable_data_ptr_no_checks().get() == nullptr) {
    auto* const holder = new at::Tensor(whole_[b]);
    device::allow_reading(storages_[b]);
    storage.set_data_ptr_noswap(at::DataPtr(whole_[b].mutable_data_ptr(), holder, &drop_tensor, device_));
  }
}

void ParameterShards::show_part(int64_t b, const at::Tensor& part) {
  whole_[b] = part;
  is_part_[b] = true;
  publish(b);
}

void ParameterShards::detach_part(int64_t b) {
  if (is_part_[b]) {
    const torch::NoGradGuard no_grad;
    const at::Tensor part = whole_[b];
    release(b);
    memory(b).copy_(part);
    publish(b);
  }
}

at::Tensor ParameterShards::view(int64_t tensor) {
  const at::AutoDispatchBelowADInplaceOrView no_view_tracking;
  const int64_t b = layout_.bucket_of(tensor);
  const int64_t offset = layout_.slot_of(tensor).begin - layout_.buckets()[b].begin;
  const at::IntArrayRef sizes = layout_.tensors()[tensor].sizes;
  return torch::empty({0}, at::TensorOptions().dtype(type_).device(device_))
      .set_(storages_[b], offset, sizes, c10::contiguous_strides(sizes));
}

void ParameterShards::update(int64_t b) {
  const torch::NoGradGuard no_grad;
  clear_gaps(layout_, b, memory(b));
  if (!is_replicated(b)) {
    const Range mine = plan_.mine(b);
    const int64_t begin = layout_.buckets()[b].begin;
    with_owned(b, mine, true,
               [&](at::Tensor values) { values.copy_(whole_[b].slice(0, mine.begin - begin, mine.end - begin)); });
  }
}

void ParameterShards::release(int64_t b) {
  if (whole_[b].defined() && !is_replicated(b)) {
    empty_storage(b);
    at::Tensor memory = std::exchange(whole_[b], at::Tensor());
    if (!is_part_[b]) {
      pool_->give_back(std::move(memory));
    }
    is_part_[b] = false;
  }
}

void ParameterShards::empty_storage(int64_t b) {
  const Bucket& bucket = layout_.buckets()[b];
  const std::string& first = layout_.tensors()[layout_.slots()[bucket.first_slot].tensor].name;
  device::drop_memory(
      storages_[b], device_,
      concat("the parameters from \"", first, "\" on (", bucket.last_slot - bucket.first_slot,
             " tensors) are sharded among the ranks (ZeRO stage 3) and not gathered now. Read them while a "
             "zero::GatheredParameters of them lives, or call the forward() of the module that is Sharded. To save the "
             "model, save what Engine::gather_model() returns."));
}

void ParameterShards::prefetch(int64_t b) {
  if (!is_replicated(b)) {
    store_->prefetch(in_store_, b);
  }
}

void ParameterShards::copy_to_device(int64_t b, const at::Tensor& to) {
  release_stepped(0);
  store_->use(in_store_, b, false, [&](const std::vector<at::Tensor>& arrays) { read(b, arrays.front(), to); });
}

void ParameterShards::read(int64_t b, const at::Tensor& part, const at::Tensor& to) {
  const torch::NoGradGuard no_grad;
  const c10::Stream current = device::current_stream(device_);
  if (const auto use = uses_.find(b); use != uses_.end() && use->second.writes) {
    use->second.done->block(current);
  }
  at::Tensor(to).copy_(part, /*non_blocking=*/true);
  const auto done = std::make_shared<device::Event>(device_.type());
  done->record(current);
  note(b, part, done, /*writes=*/false);
}

// All reads are on one stream, and a write follows the read of what it writes: the last use is done after all others.
void ParameterShards::note(int64_t b, const at::Tensor& part, std::shared_ptr<const device::Event> done, bool writes) {
  std::erase_if(uses_, [](const auto& use) { return use.second.part.defined() && use.second.done->done(); });
  const auto before = uses_.find(b);
  writes = writes || (before != uses_.end() && before->second.writes && !before->second.done->done());
  uses_[b] = {done, store_->keep_until(in_store_, b, done) ? at::Tensor() : part, writes};
}

// Call it before the host reads or changes a part.
void ParameterShards::wait_on_host(int64_t b, bool modifies) {
  release_stepped(0);
  if (const auto use = uses_.find(b); use != uses_.end() && (modifies || use->second.writes)) {
    if (!use->second.done->done()) {
      use->second.done->synchronize();
    }
    uses_.erase(use);
  }
}

// The memory of a copy belongs to the stream on which it arrived; that stream waits until the copy is back.
void ParameterShards::release_stepped(size_t left) {
  while (stepped_.size() > left) {
    const Stepped one = std::move(stepped_.front());
    stepped_.pop_front();
    one.done->block(coming_stream());
    if (const auto use = uses_.find(one.b); one.modified && use != uses_.end() && use->second.part.defined()) {
      one.done->synchronize();
      uses_.erase(use);
    }
    store_->release(in_store_, one.b, one.modified);
  }
}

void ParameterShards::with_owned_on_device(int64_t b, const Range& range, bool modifies,
                                           const std::function<void(const at::Tensor&)>& f) {
  if (!keeps_on_host(b)) {
    with_owned(b, range, modifies, f);
    return;
  }
  release_stepped(kReturningParts);
  const at::Tensor part = store_->acquire(in_store_, b).front();
  const c10::Stream current = device::current_stream(device_);
  const auto done = std::make_shared<device::Event>(device_.type());
  at::Tensor copy;
  try {
    device::Event came(device_.type());
    {
      const device::OnStream on(coming_stream());
      copy = torch::empty({part.numel()}, at::TensorOptions(type_).device(device_));
      read(b, part, copy);
      came.record(coming_stream());
    }
    came.block(current);
    const int64_t begin = plan_.mine(b).begin;
    f(copy.slice(0, range.begin - begin, range.end - begin));
    const c10::Stream returning = returning_stream(device_);
    const device::OnStream on(returning, current);
    if (modifies) {
      at::Tensor(part).copy_(copy, /*non_blocking=*/true);
    }
    done->record(returning);
    if (modifies) {
      note(b, part, done, /*writes=*/true);
    }
  } catch (...) {
    done->record(current);
    stepped_.push_back({b, std::move(copy), done, /*modified=*/false});
    throw;
  }
  stepped_.push_back({b, std::move(copy), done, modifies});
  if (uses_.at(b).part.defined()) { // the store keeps one bucket at a time
    release_stepped(0);
  }
}

void ParameterShards::with_owned(int64_t b, const Range& range, bool modifies,
                                 const std::function<void(const at::Tensor&)>& f) {
  if (is_replicated(b)) {
    const int64_t begin = layout_.buckets()[b].begin;
    f(whole_[b].slice(0, range.begin - begin, range.end - begin));
    return;
  }
  wait_on_host(b, modifies);
  const int64_t begin = plan_.mine(b).begin;
  store_->use(in_store_, b, modifies, [&](const std::vector<at::Tensor>& arrays) {
    f(arrays.front().slice(0, range.begin - begin, range.end - begin));
  });
}

std::optional<Extent> ParameterShards::extent(int64_t b) {
  release_stepped(0);
  return store_->extent(in_store_, b, 0);
}

} // namespace trireme::bucket
