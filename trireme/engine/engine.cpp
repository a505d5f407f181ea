#include <trireme/engine/engine.h>

#include <trireme/base/error.h>
#include <trireme/base/fault.h>
#include <trireme/base/log.h>
#include <trireme/base/notes.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/engine/engine_impl.h>
#include <trireme/engine/stopwatch.h>
#include <trireme/engine/training_state.h>
#include <trireme/monitor/chrome_trace.h>
#include <trireme/precision/autocast.h>
#include <trireme/precision/cast.h>

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <limits>
#include <utility>

namespace trireme::engine {
namespace {

// What TRIREME_FAULT makes of a value that autograd goes through.
at::Tensor spoiled(const at::Tensor& value, fault::Effect effect) {
  return effect == fault::Effect::nan ? value * std::numeric_limits<double>::quiet_NaN() : value;
}

} // namespace

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

// The user's module may outlive the engine.
Engine::Impl::~Impl() {
  if (coordinator) {
    coordinator->forget_buffers();
  }
  if (layers) {
    layers->set_hooks({});
  }
}

bool Engine::Impl::at_boundary() const {
  return (micro_steps + 1) % batch.accumulation == 0;
}

double Engine::Impl::exposed_seconds() const {
  return reducer->exposed_seconds() + coordinator->exposed_seconds() + (parameter_gather ? parameter_gather->exposed_seconds() : 0);
}

void Engine::Impl::check_usable() const {
  if (!failure.empty()) {
    throw Error("engine", concat("it is used after a failure in step ", global_steps + 1, ", which ended the groups of its ranks: ", failure),
                "Start the ranks again and load the last checkpoint.");
  }
}

void Engine::Impl::check_whole(const char* wanted) const {
  check_usable();
  if (!torn.empty()) {
    throw Error("engine", concat(wanted, ": ", torn), "Load a checkpoint, or end the run.");
  }
  if (stepping) { // with "step_in_backward"
    throw InputError("engine", concat(wanted, " between backward() and step(): some parameters are those of step ", global_steps + 1, " already"),
                     "Call step() first.");
  }
}

void Engine::Impl::check_released() const {
  if (coordinator->has_pins()) {
    throw InputError("engine", concat("after step ", global_steps, ": a step or a load would leave the gathered parameters as they were before it"),
                     "Let go of what gather_parameters() returned, then step or load.");
  }
}

void Engine::Impl::start_step() {
  check_whole("train_batch()");
  in_step = true;
  running = StepTimes();
  waiting_for_stages = 0;
  step_start = Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(loading));
  fault::set_step(global_steps + 1);
  exposed_before = exposed_seconds();
  coordinator->begin(zero::Pass::training);
  broadcast_module_buffers();
}

void Engine::Impl::broadcast_module_buffers() {
  if (module_buffers && module_buffers_differ) {
    module_buffers->broadcast();
  }
  module_buffers_differ = false;
}

void Engine::Impl::drop_step(const char* why) noexcept {
  if (!std::exchange(in_step, false)) {
    return;
  }
  try {
    if (everyone.size() > 1) {
      failure = why;
      everyone.report_failure(why);
      return;
    }
    if (stepping) {
      torn = concat("step ", global_steps + 1, " failed after some parameters had been stepped");
    }
    loading = 0;
    reducer->abandon();
    coordinator->release_all();
    if (parameter_gather) {
      parameter_gather->finish();
    }
    clear_step();
  } catch (const std::exception& error) {
    log::error("a failed step was not dropped as a whole: ", error.what());
  }
}

void Engine::Impl::clear_step() {
  loss_sum = 0;
  in_step = stepping = scale_was_used = scale_was_lowered_between = false;
  stepped.clear();
  micro_steps = global_steps * batch.accumulation;
  for (const auto& buffer : buffers) {
    buffer->clear_grads();
  }
}

data::Batch Engine::Impl::load(const std::function<data::Batch()>& next) {
  const Stopwatch watch(loading);
  const Note note("data");
  fault::set_step(global_steps + 1);
  fault::at(fault::Phase::data);
  return next();
}

at::Tensor Engine::Impl::forward(const data::Batch& micro_batch) {
  if (pipe.size() > 1) {
    throw InputError("engine", concat("forward() of a model in ", pipe.size(), " pipeline stages"),
                     "No rank has all layers: use train_batch() and eval_batch(), which run the whole schedule.");
  }
  if (micro_steps % batch.accumulation == 0) {
    start_step();
  }
  const Stopwatch watch(running.forward, [this] { return exposed_seconds(); });
  const monitor::Span span("forward");
  const Note note("forward of step", global_steps + 1);
  const fault::Effect effect = fault::at(fault::Phase::forward);
  if (!model->is_training()) {
    model->train();
  }
  module_buffers_differ = true;
  return spoiled(loss_of(micro_batch).loss, effect);
}

LossAndLogits Engine::Impl::loss_of(const data::Batch& micro_batch) const {
  const std::shared_ptr<void> guard = autocast_guard();
  return loss_function(with_inputs_cast(micro_batch));
}

data::Batch Engine::Impl::with_inputs_cast(data::Batch micro_batch) const {
  if (precision.cast_inputs && precision.compute == precision::Type::fp16) { // a key of "fp16": nothing while that is off
    micro_batch.inputs = precision::cast_floating(std::move(micro_batch.inputs), precision.compute);
  }
  return micro_batch;
}

// Null without autocast.
std::shared_ptr<void> Engine::Impl::autocast_guard() const {
  if (!precision.autocast) {
    return nullptr;
  }
  return std::make_shared<precision::Autocast>(precision.autocast_type, buffers.empty() ? at::kCPU : buffers.front()->riders().device().type());
}

// Every stage reduces its buckets as soon as the backward of its last micro-batch fills them.
void Engine::Impl::run_pipeline(const std::function<data::Batch()>& next) {
  start_step();
  const Note note("step", global_steps + 1);
  if (!model->is_training()) {
    model->train();
  }
  module_buffers_differ = true;
  const auto micro_batches = static_cast<double>(batch.accumulation);
  pipeline::Executor::Callbacks callbacks;
  bool riders_set = buffers.empty();
  callbacks.before_backward = [&](int, bool last) {
    reducer->set_synchronising(last);
    if (last && !riders_set) { // once: afterwards the bucket may be on its way
      loss_sum = has_loss() ? executor->loss_sum() / micro_batches : 0;
      set_riders();
      riders_set = true;
    }
  };
  callbacks.reduce_tied_grads = [&] { ties->sum_gradients(); };
  callbacks.reduce_grads = [&] { reducer->end(); };
  reducer->begin();
  const auto loaded = [&] { return with_inputs_cast(load(next)); };
  const auto scale = [this](at::ScalarType loss) { return root_gradient(loss); };
  loss_sum = executor->train(static_cast<int>(batch.accumulation), micro_steps, scale, loaded, callbacks) / micro_batches;
  running.forward = executor->seconds().forward;
  running.backward = executor->seconds().backward;
  micro_steps += batch.accumulation - 1;
}

void Engine::Impl::backward(const at::Tensor& loss) {
  if (loss.dim() != 0 && loss.numel() != 1) {
    throw InputError("engine", concat("backward() needs a loss of one element, got shape ", loss.sizes()), "Return the mean from the loss function.");
  }
  const Stopwatch watch(running.backward, [this] { return exposed_seconds(); });
  const monitor::Span span("backward");
  const Note note("backward of step", global_steps + 1);
  drop_on_failure([&] {
    const at::Tensor root = spoiled(loss, fault::at(fault::Phase::backward));
    loss_sum += loss.item<double>() / static_cast<double>(batch.accumulation);
    if (at_boundary()) {
      set_riders();
    }
    // Sharded gradients are added up as shards, so every micro-batch is reduced.
    const bool reduces = at_boundary() || buffers.front()->gradients_are_sharded();
    reducer->set_synchronising(reduces);
    if (reduces) {
      reducer->begin();
    }
    root.backward(torch::full_like(root, root_gradient(root.scalar_type()), at::TensorOptions(torch::kFloat32).requires_grad(false))
                      .to(root.scalar_type()));
    if (reduces) {
      if (ties) { // of layers in one stage
        ties->sum_gradients();
      }
      reducer->end();
    }
  });
}

// The loss itself is never multiplied, which in fp16 would be infinite. What backward begins with has the loss's type: 65536 is not in fp16, so
// such a loss lowers a fixed scale (update() tells the other ranks); a dynamic one is lowered by the overflow.
double Engine::Impl::root_gradient(at::ScalarType loss) {
  const auto micro_batches = static_cast<double>(batch.accumulation);
  const bool lowered = scaler.limit(precision::largest_power(loss) * micro_batches);
  scale_was_lowered_between = scale_was_lowered_between || (lowered && scale_was_used);
  scale_was_used = true;
  return scaler.scale() / micro_batches;
}

void Engine::Impl::step() {
  if (!at_boundary()) {
    ++micro_steps;
    return;
  }
  ++micro_steps;
  {
    const Stopwatch watch(running.optimizer, [this] { return exposed_seconds() + waiting_for_stages; });
    const monitor::Span span("optimizer");
    const Note note("optimizer of step", global_steps + 1);
    fault::at(fault::Phase::step);
    update();
  }
  ++global_steps;
  clear_step();
  global_samples += batch.train;
  running.exposed_communication = exposed_seconds() - exposed_before;
  if (executor) {
    running.exposed_communication += executor->seconds().waiting;
  }
  running.exposed_communication += waiting_for_stages;
  running.data = loading;
  loading = 0;
  running.total = std::chrono::duration<double>(Clock::now() - step_start).count();
  times = running;
  arrivals->step(global_steps, {times.data, times.forward, times.backward, times.optimizer, times.exposed_communication, times.total});
}

at::Tensor Engine::train_batch() {
  if (!impl_->loader) {
    throw InputError("engine", "train_batch() has no data", "Give initialize() training_data, or call train_batch(next).");
  }
  if (impl_->executor && !impl_->executor->loads_inputs() && !impl_->executor->loads_targets()) {
    for (int64_t i = 0; i < impl_->batch.accumulation; ++i) {
      impl_->loader->skip(); // a stage between has no use for data, but its position must be everybody's
    }
  }
  return train_batch([this] { return impl_->loader->next(); });
}

at::Tensor Engine::train_batch(const std::function<data::Batch()>& next) {
  if (impl_->micro_steps % impl_->batch.accumulation != 0) {
    throw InputError("engine", "train_batch() in the middle of a step", "Finish the step with forward(), backward() and step() first.");
  }
  impl_->check_released();
  impl_->drop_on_failure([&] {
    if (impl_->runs_schedule()) {
      impl_->run_pipeline(next);
      step();
      return;
    }
    for (int64_t i = 0; i < impl_->batch.accumulation; ++i) {
      impl_->backward(impl_->forward(impl_->load(next)));
      step();
    }
  });
  return torch::tensor(impl_->mean_loss, torch::kFloat64);
}

at::Tensor Engine::forward(const data::Batch& batch) {
  impl_->check_whole("forward()");
  at::Tensor loss;
  impl_->drop_on_failure([&] { loss = impl_->forward(batch); });
  return loss;
}
void Engine::backward(const at::Tensor& loss) {
  if (impl_->may_step_in_backward) {
    impl_->check_released();
  }
  impl_->backward(loss);
}
void Engine::step() {
  impl_->check_released();
  const int64_t before = impl_->global_steps;
  impl_->drop_on_failure([this] { impl_->step(); });
  if (impl_->report && impl_->global_steps > before) {
    impl_->report->step(*this);
  }
}

int64_t Engine::train_batch_size() const {
  return impl_->batch.train;
}
int64_t Engine::train_micro_batch_size_per_gpu() const {
  return impl_->batch.micro;
}
int64_t Engine::gradient_accumulation_steps() const {
  return impl_->batch.accumulation;
}
bool Engine::is_gradient_accumulation_boundary() const {
  return impl_->at_boundary();
}
int64_t Engine::global_steps() const {
  return impl_->global_steps;
}
int64_t Engine::skipped_steps() const {
  return impl_->skipped_steps;
}
int64_t Engine::global_samples() const {
  return impl_->global_samples;
}
bool Engine::stop_agreed() const {
  return impl_->stop_agreed;
}
double Engine::get_lr() const {
  return impl_->lr;
}
std::optional<double> Engine::get_global_grad_norm() const {
  return impl_->grad_norm;
}
void Engine::want_grad_norm(bool on) {
  impl_->norm_wanted = on;
}
const StepTimes& Engine::times() const {
  return impl_->times;
}
const std::optional<monitor::Straggler>& Engine::straggler() const {
  return impl_->arrivals->straggler();
}
int64_t Engine::num_parameters() const {
  return impl_->num_parameters;
}
std::optional<double> Engine::loss_scale() const {
  return impl_->precision.scales_loss() ? std::optional(impl_->used_scale) : std::nullopt;
}
double Engine::loss() const {
  return impl_->mean_loss;
}
const comm::Group& Engine::group() const {
  return impl_->group;
}
const comm::Group& Engine::pipe_group() const {
  return impl_->pipe;
}
int64_t Engine::bytes_sent() const {
  return impl_->group.bytes_sent() + (impl_->pipe.size() > 1 ? impl_->pipe.bytes_sent() : 0);
}
std::unique_ptr<zero::GatheredParameters> Engine::gather_parameters(std::vector<at::Tensor> parameters, std::optional<int> modifier_rank) {
  return std::make_unique<zero::GatheredParameters>(impl_->coordinator, std::move(parameters), modifier_rank);
}
torch::nn::Module& Engine::module() {
  return *impl_->model;
}

void Engine::save_checkpoint(const std::filesystem::path& folder, const std::string& tag) {
  save_checkpoint(folder, tag, nlohmann::json::object());
}

void Engine::save_checkpoint(const std::filesystem::path& folder, const std::string& tag, const nlohmann::json& client_state, int64_t keep_last) {
  checkpoint::SaveOptions options(impl_->checkpoint);
  options.keep_last = keep_last;
  impl_->check_whole("save_checkpoint()");
  const Note note("checkpoint of step", impl_->global_steps);
  fault::at(fault::Phase::checkpoint);
  TrainingState(*impl_).save(folder, tag.empty() ? checkpoint::step_tag(impl_->global_steps) : tag, client_state, options);
}

std::optional<nlohmann::json> Engine::load_checkpoint(const std::filesystem::path& folder, const std::string& tag) {
  impl_->check_usable();
  if (tag.empty() && !checkpoint::find_newest(folder, impl_->everyone)) {
    return std::nullopt;
  }
  impl_->check_released();
  const Note note("load of a checkpoint");
  return TrainingState(*impl_).load(folder, tag);
}

} // namespace trireme::engine
