#include <trireme/engine/engine_impl.h>

#include <set>

namespace trireme::engine {

int64_t Engine::train_batch_size() const {
  return impl_->parts.settings.batch.train;
}
int64_t Engine::train_micro_batch_size_per_gpu() const {
  return impl_->parts.settings.batch.micro;
}
int64_t Engine::gradient_accumulation_steps() const {
  return impl_->parts.settings.batch.accumulation;
}
bool Engine::is_gradient_accumulation_boundary() const {
  return impl_->at_boundary();
}
parallel::Workers* Engine::workers() {
  return impl_->parts.agreement.sync->workers();
}
int64_t Engine::global_steps() const {
  return impl_->state.global_steps;
}
int64_t Engine::skipped_steps() const {
  return impl_->optimizer_step.skipped_steps();
}
int64_t Engine::global_samples() const {
  return impl_->state.global_samples;
}
bool Engine::stop_agreed() const {
  return impl_->optimizer_step.stop_agreed();
}
double Engine::get_lr() const {
  return impl_->optimizer_step.outcome()->lr();
}
std::optional<double> Engine::get_global_grad_norm() const {
  return impl_->optimizer_step.outcome()->grad_norm();
}
void Engine::want_grad_norm(bool on) {
  impl_->optimizer_step.want_norm(on);
}
const StepTimes& Engine::times() const {
  return impl_->clock.times();
}
int64_t Engine::host_syncs() const {
  return impl_->clock.host_syncs();
}
std::optional<device::MemoryUse> Engine::device_memory() const {
  return device::memory_use(device());
}
const std::optional<monitor::Straggler>& Engine::straggler() const {
  return impl_->arrivals->straggler();
}
int64_t Engine::num_parameters() const {
  return impl_->parts.buffers.num_parameters;
}
int64_t Engine::num_trained_parameters() const {
  return impl_->parts.buffers.num_trained;
}
std::optional<double> Engine::loss_scale() const {
  return impl_->parts.settings.precision.scales_loss() ? std::optional(impl_->optimizer_step.outcome()->loss_scale())
                                                       : std::nullopt;
}
double Engine::loss() const {
  return impl_->optimizer_step.outcome()->loss();
}
std::shared_ptr<const StepOutcome> Engine::outcome() const {
  return impl_->optimizer_step.outcome();
}
const activations::Activations* Engine::activations() const {
  return impl_->parts.stepper.activations.get();
}
at::Device Engine::device() const {
  return impl_->parts.device();
}
const comm::Group& Engine::group() const {
  return impl_->parts.ranks.data;
}
const comm::Group& Engine::context_group() const {
  return impl_->parts.ranks.context;
}
const comm::Group& Engine::tensor_group() const {
  return impl_->parts.ranks.tensor;
}
const comm::Group& Engine::pipe_group() const {
  return impl_->parts.ranks.pipe;
}
int64_t Engine::bytes_sent() const {
  int64_t bytes = 0;
  for (const auto& [axes, sent] : bytes_sent_by_axes()) {
    bytes += sent;
  }
  return bytes;
}
std::map<std::string, int64_t> Engine::bytes_sent_by_axes() const {
  const Parts& parts = impl_->parts;
  std::map<std::string, int64_t> bytes;
  std::set<std::string> seen; // one group may be the group of several axes; names of groups differ
  const auto add = [&](const std::string& axes, const comm::Group& group) {
    if (group.size() > 1 && seen.insert(group.name()).second) {
      bytes[axes] += group.bytes_sent();
    }
  };
  if (const parallel::Workers* const workers = parts.agreement.sync->workers()) {
    bytes[std::string(workers->axis())] = parts.agreement.sync->step_exchange().bytes_sent();
  }
  add("tensor", parts.ranks.tensor);
  add("context", parts.ranks.context);
  add("pipe", parts.ranks.pipe);
  add("data", parts.ranks.data);
  add(parts.ranks.data.size() > 1 ? "data+context" : "context", parts.ranks.group);
  if (parts.ranks.tensor.size() > 1) {
    add(parts.ranks.group.size() > 1 ? "data+tensor" : "tensor", parts.ranks.stage);
    add("pipe+tensor", parts.ranks.model_ranks);
  }
  for (const comm::Group& group : parts.agreement.sync->groups().every()) {
    add("data", group);
  }
  if (parts.model.synced_norms) {
    add("data", parts.model.synced_norms->group());
  }
  return bytes;
}
std::optional<offload::Traffic> Engine::offload_traffic() const {
  return impl_->parts.ranks.offloaded ? std::optional(*impl_->parts.ranks.offloaded) : std::nullopt;
}

} // namespace trireme::engine
