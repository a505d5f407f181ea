#include <trireme/engine/parts.h>

#include <trireme/precision/autocast.h>
#include <trireme/precision/cast.h>

#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

namespace trireme::engine {

// The user's module may outlive the engine.
Parts::~Parts() {
  if (optimizer) {
    optimizer->drop_delayed();
  }
  if (coordinator) {
    coordinator->forget_buffers();
  }
  if (layers) {
    layers->set_hooks({});
  }
}

bucket::Placement Parts::placement_of(const at::Tensor& parameter) const {
  if (const auto found = split.find(parameter.unsafeGetTensorImpl()); found != split.end()) {
    return found->second;
  }
  bucket::Placement placement;
  if (tensor.size() > 1) {
    placement.reduce_group = parameter.requires_grad() ? whole.group : 0;
    placement.counts_in_norm = (whole.is_sum && parameter.requires_grad()) || tensor.rank() == 0;
  }
  if (const auto tile = tiles.find(parameter.unsafeGetTensorImpl()); tile != tiles.end()) {
    placement.tile = tile->second.tile;
    placement.global_shape = tile->second.global_shape;
    placement.box_offset = tile->second.box_offset;
  }
  return placement;
}

LossAndLogits Parts::loss_of(const data::Batch& micro_batch) {
  const std::shared_ptr<void> guard = forward_guard();
  return loss_function(prepared(micro_batch));
}

data::Batch Parts::prepared(data::Batch micro_batch) {
  if (pipe.size() > 1) {
    data::identify(micro_batch); // on the host, before it leaves
  }
  micro_batch.inputs = uploader.upload(std::move(micro_batch.inputs));
  micro_batch.targets = uploader.upload(std::move(micro_batch.targets));
  if (precision.cast_inputs &&
      precision.compute == precision::Type::fp16) { // a key of "fp16": nothing while that is off
    micro_batch.inputs = precision::cast_floating(std::move(micro_batch.inputs), precision.compute);
  }
  return micro_batch;
}

std::shared_ptr<void> Parts::forward_guard() const {
  std::shared_ptr<void> autocast;
  if (precision.autocast) {
    autocast = std::make_shared<precision::Autocast>(precision.autocast_type, device().type());
  }
  if (!activations || !at::GradMode::is_enabled()) {
    return autocast;
  }
  std::vector<at::Tensor> fixed = model->parameters();
  const std::vector<at::Tensor> buffers = model->buffers();
  fixed.insert(fixed.end(), buffers.begin(), buffers.end());
  return std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(autocast, activations->enter(fixed));
}

} // namespace trireme::engine
