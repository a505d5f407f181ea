#include <trireme/shards/zero/early_shards.h>

#include <trireme/device/absent_memory.h>
#include <trireme/shards/zero/gather_bucket.h>

#include <torch/nn/module.h>

#include <set>
#include <utility>

namespace trireme::zero {
namespace {

// The parameters that no earlier module registered.
bucket::NamedTensors parameters_of(const torch::nn::Module& module) {
  bucket::NamedTensors found;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (device::has_memory(item.value()) && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      found.emplace_back(item.key(), item.value());
    }
  }
  return found;
}

} // namespace

EarlyShards::EarlyShards(const torch::nn::Module& module, const comm::Group& group,
                         std::shared_ptr<bucket::StateStore> store)
    : group_(group) {
  bucket::LayoutOptions layout;
  layout.shards = group_.size();
  const bucket::FlatOptions sharded{
      .rank = group_.rank(),
      .size = group_.size(),
      .shard_gradients = true,
      .shard_parameters = true,
      .unit_of = [](const at::Tensor&) { return 0; },
      .parameter_store = std::move(store),
      .keep_spare_memory = false}; // one pool per module: all pools would keep the full model
  buffers_ = bucket::flatten(
      parameters_of(module), layout,
      [group](int64_t numel, at::ScalarType type, at::Device device) { return group.allocate(numel, type, device); },
      sharded);
  for (const auto& buffer : buffers_) {
    buffer->move_in(0);
    group_.broadcast(buffer->bucket_data(0), 0, "parameters of a new module").wait();
    buffer->update_shard(0);
    buffer->release(0);
  }
}

void EarlyShards::gather() {
  for (const auto& buffer : buffers_) {
    if (!buffer->is_gathered(0)) {
      gather_bucket(group_, *buffer, 0).wait();
    }
  }
}

} // namespace trireme::zero
