#include <trireme/engine/parts.h>

#include <trireme/precision/autocast.h>
#include <trireme/precision/cast.h>

#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

namespace trireme::engine {

// The user's module may outlive the engine.
Parts::~Parts() {
  if (stepper.optimizer) {
    stepper.optimizer->drop_delayed();
  }
  if (buffers.coordinator) {
    buffers.coordinator->forget_buffers();
  }
  if (model.layers) {
    model.layers->set_hooks({});
  }
}

bucket::Placement Parts::placement_of(const at::Tensor& parameter) const {
  if (const auto found = model.split.find(parameter.unsafeGetTensorImpl()); found != model.split.end()) {
    return found->second;
  }
  bucket::Placement placement;
  if (ranks.tensor.size() > 1) {
    placement.reduce_group = parameter.requires_grad() ? agreement.whole.group : 0;
    placement.counts_in_norm = (agreement.whole.is_sum && parameter.requires_grad()) || ranks.tensor.rank() == 0;
  }
  if (const auto tile = model.tiles.find(parameter.unsafeGetTensorImpl()); tile != model.tiles.end()) {
    placement.tile = tile->second.tile;
    placement.global_shape = tile->second.global_shape;
    placement.box_offset = tile->second.box_offset;
  }
  return placement;
}

void Parts::weigh_losses_after(int64_t steps) const {
  if (stepper.loader) {
    stepper.loader->weigh_by(agreement.sync->sums_all_after(steps) ? data::TargetsOf::all_ranks
                                                                   : data::TargetsOf::this_rank);
  }
}

LossAndLogits Parts::loss_of(const data::Batch& micro_batch) const {
  const std::shared_ptr<void> guard = forward_guard();
  return model.loss_function(prepared(micro_batch));
}

data::Batch Parts::prepared(data::Batch micro_batch) const {
  if (ranks.pipe.size() > 1) {
    data::identify(micro_batch); // on the host, before the copy
  }
  micro_batch.inputs = ranks.uploader->upload(std::move(micro_batch.inputs));
  micro_batch.targets = ranks.uploader->upload(std::move(micro_batch.targets));
  if (settings.precision.cast_inputs &&
      settings.precision.compute == precision::Type::fp16) { // a key of section "fp16", without effect if that is off
    micro_batch.inputs = precision::cast_floating(std::move(micro_batch.inputs), settings.precision.compute);
  }
  return micro_batch;
}

std::shared_ptr<void> Parts::forward_guard() const {
  std::shared_ptr<void> autocast;
  if (settings.precision.autocast) {
    autocast = std::make_shared<precision::Autocast>(settings.precision.autocast_type, device().type());
  }
  if (!stepper.activations || !at::GradMode::is_enabled()) {
    return autocast;
  }
  std::vector<at::Tensor> fixed = model.module->parameters();
  const std::vector<at::Tensor> buffers = model.module->buffers();
  fixed.insert(fixed.end(), buffers.begin(), buffers.end());
  return std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(autocast,
                                                                                   stepper.activations->enter(fixed));
}

} // namespace trireme::engine
