#include <trireme/engine/engine.h>

#include <trireme/base/error.h>
#include <trireme/base/fault.h>
#include <trireme/base/log.h>
#include <trireme/base/notes.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/folder.h>
#include <trireme/device/host_scalars.h>
#include <trireme/engine/engine_impl.h>
#include <trireme/engine/make_activations.h>
#include <trireme/engine/same_rates.h>
#include <trireme/engine/training_state.h>
#include <trireme/monitor/chrome_trace.h>

#include <torch/nn/module.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <utility>

namespace trireme::engine {
namespace {

// Applies TRIREME_FAULT to a value inside the autograd graph.
at::Tensor spoiled(const at::Tensor& value, fault::Effect effect) {
  return effect == fault::Effect::nan ? value * std::numeric_limits<double>::quiet_NaN() : value;
}

at::Tensor weighted(const at::Tensor& loss, double weight) {
  return weight == 1 ? loss : loss * weight;
}

// Lets gradients reach the parameters during its lifetime.
class OwnBackward {
 public:
  explicit OwnBackward(parallel::Reducer& reducer) : reducer_(reducer) { reducer_.set_accepting(true); }
  ~OwnBackward() { reducer_.set_accepting(false); }
  OwnBackward(const OwnBackward&) = delete;
  OwnBackward& operator=(const OwnBackward&) = delete;

 private:
  parallel::Reducer& reducer_;
};

} // namespace

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

void Engine::Impl::check_usable() const {
  if (!failure_.empty()) {
    throw Error("engine",
                concat("the engine cannot continue: step ", state.global_steps + 1,
                       " failed and ended the groups of its ranks: ", failure_),
                "Start the ranks again and load the last checkpoint.");
  }
}

void Engine::Impl::check_whole(const char* wanted) const {
  check_usable();
  if (!torn_.empty()) {
    throw Error("engine", concat(wanted, ": ", torn_), "Load a checkpoint, or stop the run.");
  }
  if (optimizer_step.has_begun()) { // with "step_in_backward"
    throw InputError("engine",
                     concat(wanted, " between backward() and step(): some parameters are already those of step ",
                            state.global_steps + 1),
                     "Call step() first.");
  }
}

void Engine::Impl::check_released() const {
  if (parts.buffers.coordinator->has_pins()) {
    throw InputError("engine", concat("parameters are still gathered after step ", state.global_steps),
                     "Destroy what gather_parameters() returned before step() or load_checkpoint().");
  }
  if (!replica_mean_.expired()) {
    throw InputError("engine", concat("the model still has the mean of the replicas after step ", state.global_steps),
                     "Destroy what mean_of_replicas() returned before step() or load_checkpoint().");
  }
}

void Engine::Impl::start_step() {
  check_whole("train_batch()");
  in_step_ = true;
  parts.buffers.unchanged->check();
  clock.start();
  fault::set_step(state.global_steps + 1);
  parts.buffers.coordinator->begin(zero::Pass::training);
  broadcast_module_buffers();
}

void Engine::Impl::broadcast_module_buffers() {
  for (size_t axis = 0; axis < parts.model.module_buffers.size(); ++axis) {
    const bool of_one_replica = axis == 1;
    if ((of_one_replica || parts.agreement.sync->replicas_are_equal()) &&
        std::exchange(module_buffers_differ_[axis], false)) {
      parts.model.module_buffers[axis].broadcast();
    }
  }
}

std::shared_ptr<ReplicaMean> Engine::Impl::replica_mean() {
  std::shared_ptr<ReplicaMean> mean = replica_mean_.lock();
  if (!mean && !parts.agreement.sync->replicas_are_equal()) {
    mean = std::make_shared<ReplicaMean>(parts);
    replica_mean_ = mean;
  }
  return mean;
}

void Engine::Impl::drop_step(const char* why) noexcept {
  if (!std::exchange(in_step_, false)) {
    return;
  }
  try {
    if (parts.ranks.everyone.size() > 1) {
      failure_ = why;
      parts.ranks.everyone.report_failure(why);
      return;
    }
    if (optimizer_step.has_begun()) {
      torn_by(concat("step ", state.global_steps + 1, " failed after some parameters had been stepped"));
    }
    clock.drop();
    parts.buffers.reducer->abandon();
    parts.buffers.coordinator->release_all();
    clear_step();
  } catch (const std::exception& error) {
    log::error("a failed step was not dropped completely: ", error.what());
  }
}

void Engine::Impl::clear_step() {
  loss_sum_ = at::Tensor();
  in_step_ = went_back_ = false;
  optimizer_step.clear();
  state.micro_steps = state.global_steps * parts.settings.batch.accumulation;
  parts.weigh_losses_after(state.global_steps);
  for (const auto& buffer : parts.buffers.trained) {
    buffer->clear_grads();
  }
}

// After this, a forward that has run is the first of the step.
void Engine::Impl::zero_grad() {
  check_whole("zero_grad()");
  if (loss_sum_.defined()) {
    const bool in_step = in_step_;
    parts.buffers.reducer->finish();
    clear_step();
    in_step_ = in_step;
  }
}

data::Batch Engine::Impl::load(const std::function<data::Batch()>& next) {
  const Stopwatch watch = clock.data();
  const Note note("data");
  fault::set_step(state.global_steps + 1);
  fault::at(fault::Phase::data);
  return next();
}

void Engine::Impl::begin_forward() {
  if (!parts.model.module->is_training()) {
    parts.model.module->train();
  }
  module_buffers_differ_.fill(true);
}

at::Tensor Engine::Impl::forward(const data::Batch& micro_batch) {
  if (parts.ranks.pipe.size() > 1) {
    throw InputError(
        "engine", concat("forward() needs all layers, but the model has ", parts.ranks.pipe.size(), " pipeline stages"),
        "Use train_batch() and eval_batch(), which run the whole schedule.");
  }
  if (!in_the_middle_of_a_step()) {
    start_step();
  }
  const Stopwatch watch = clock.forward();
  const monitor::Span span("forward");
  const Note note("forward of step", state.global_steps + 1);
  const fault::Effect effect = fault::at(fault::Phase::forward);
  begin_forward();
  return spoiled(weighted(parts.loss_of(micro_batch).loss, micro_batch.loss_weight), effect);
}

// Each stage reduces its buckets as soon as the backward of its last micro-batch fills them.
void Engine::Impl::run_pipeline(const std::function<data::Batch()>& next) {
  start_step();
  if (parts.settings.precision.scales_loss()) {
    optimizer_step.settle();
  }
  const Note note("step", state.global_steps + 1);
  begin_forward();
  const OwnBackward own(*parts.buffers.reducer);
  went_back_ = true;
  const int64_t micro_batches = parts.settings.batch.accumulation;
  const auto send_loss = [&] {
    if (!optimizer_step.loss_was_sent()) {
      optimizer_step.send_loss(parts.model.executor->loss_sum());
    }
  };
  pipeline::Executor::Callbacks callbacks;
  callbacks.before_backward = [&](int, bool last) {
    parts.buffers.reducer->set_synchronising(last);
    if (last) {
      send_loss();
    }
  };
  callbacks.reduce_tied_grads = [this] { parts.model.ties->sum_gradients(); };
  callbacks.reduce_grads = [this] { parts.buffers.reducer->end(); };
  parts.buffers.reducer->begin();
  const auto loaded = [&] { return parts.prepared(load(next)); };
  const auto scale = [&](at::ScalarType loss) { return state.scale.root_gradient(loss, micro_batches); };
  parts.model.executor->train(static_cast<int>(micro_batches), state.micro_steps, scale, loaded, callbacks);
  send_loss(); // for a stage that trains nothing
  state.micro_steps += micro_batches - 1;
}

void Engine::Impl::backward(const at::Tensor& loss) {
  if (loss.dim() != 0 && loss.numel() != 1) {
    throw InputError("engine", concat("backward() needs a loss of one element, got shape ", loss.sizes()),
                     "Return the mean from the loss function.");
  }
  if (went_back_) { // its gradients may be in communication already
    throw InputError("engine", concat("a second backward() of one micro-batch in step ", state.global_steps + 1),
                     "Add the losses: backward(loss_real + loss_fake). Or set \"gradient_accumulation_steps\" and call "
                     "step() after each backward(); the engine divides each loss by their number.");
  }
  const Stopwatch watch = clock.backward();
  const monitor::Span span("backward");
  const Note note("backward of step", state.global_steps + 1);
  drop_on_failure([&] {
    const at::Tensor root = spoiled(loss, fault::at(fault::Phase::backward));
    device::add_scalar(loss_sum_, loss);
    if (at_boundary()) {
      optimizer_step.send_loss(loss_sum_);
    }
    run_backward(root, at_boundary(), [&] { return optimizer_step.root_gradient(root); });
  });
}

void Engine::Impl::run_backward(const at::Tensor& loss, bool last, const std::function<at::Tensor()>& root_gradient) {
  // Sharded gradients accumulate as shards, so every micro-batch is reduced.
  const bool reduces = last || parts.buffers.trained.front()->gradients_are_sharded();
  parts.buffers.reducer->set_synchronising(reduces);
  if (reduces) {
    parts.agreement.sync->backward_begins(last);
    parts.buffers.reducer->begin();
  }
  const at::Tensor gradient = root_gradient();
  const OwnBackward own(*parts.buffers.reducer);
  went_back_ = true;
  loss.backward(gradient);
  if (reduces) {
    if (parts.model.ties) { // ties of layers within one stage
      parts.model.ties->sum_gradients();
    }
    parts.buffers.reducer->end();
  }
}

void Engine::Impl::step() {
  if (!std::exchange(went_back_, false)) {
    throw InputError("engine", concat("step() of step ", state.global_steps + 1, " without backward()"),
                     "Call the engine's backward(loss) for each micro-batch, then step(). Gradients of loss.backward() "
                     "are dropped.");
  }
  if (!at_boundary()) {
    ++state.micro_steps;
    return;
  }
  ++state.micro_steps;
  {
    const Stopwatch watch = clock.optimizer();
    const monitor::Span span("optimizer");
    const Note note("optimizer of step", state.global_steps + 1);
    fault::at(fault::Phase::step);
    optimizer_step.run();
  }
  ++state.global_steps;
  clear_step();
  end_step_of_activations(parts, state);
  state.global_samples += parts.settings.batch.train;
  if (parallel::Workers* const workers = parts.agreement.sync->workers()) {
    const int64_t made = workers->after_step();
    skip_to(state.global_steps + made - 1);
  }
  if (!parts.steps_together()) {
    broadcast_module_buffers(); // in an averaging step, so nothing is sent until the next
  }
  double schedule_waited = 0;
  if (parts.runs_schedule()) {
    const pipeline::Executor::Seconds seconds = parts.model.executor->seconds();
    clock.set_compute(seconds.forward, seconds.backward);
    schedule_waited = seconds.waiting;
  }
  clock.end(schedule_waited);
  const StepTimes& times = clock.times();
  arrivals->step(state.global_steps,
                 {times.data, times.forward, times.backward, times.optimizer, times.exposed_communication, times.total},
                 parts.steps_together() || parts.agreement.sync->replicas_are_equal());
}

void Engine::Impl::skip_to(int64_t step) {
  for (; state.global_steps < step; ++state.global_steps) {
    parts.stepper.schedule->advance();
    for (int64_t i = 0; parts.stepper.loader && i < parts.settings.batch.accumulation; ++i) {
      parts.stepper.loader->skip();
    }
    state.micro_steps += parts.settings.batch.accumulation;
    state.global_samples += parts.settings.batch.train;
  }
}

at::Tensor Engine::train_batch() {
  if (!impl_->parts.stepper.loader) {
    throw InputError("engine", "train_batch() has no data",
                     "Pass training_data or a training_loader to initialize(), or call train_batch(next).");
  }
  if (impl_->parts.model.executor && !impl_->parts.model.executor->loads_inputs() &&
      !impl_->parts.model.executor->loads_targets()) {
    for (int64_t i = 0; i < impl_->parts.settings.batch.accumulation; ++i) {
      impl_->parts.stepper.loader->skip(); // a middle stage needs no data, but all positions must be equal
    }
  }
  impl_->parts.stepper.loader->begin_step();
  return train_batch([this] { return impl_->parts.stepper.loader->next(); });
}

at::Tensor Engine::train_batch(const std::function<data::Batch()>& next) {
  if (impl_->in_the_middle_of_a_step()) {
    throw InputError("engine", "train_batch() called in the middle of a step",
                     "Finish the step with forward(), backward() and step() first.");
  }
  impl_->check_released();
  const StepGraph::OnStream on(impl_->graph.get());
  impl_->drop_on_failure([&] {
    if (impl_->parts.runs_schedule()) {
      impl_->run_pipeline(next);
      step();
      return;
    }
    if (impl_->graph) {
      impl_->run_with_graph(next, [this] { step(); });
      return;
    }
    for (int64_t i = 0; i < impl_->parts.settings.batch.accumulation; ++i) {
      impl_->backward(impl_->forward(impl_->load(next)));
      step();
    }
  });
  return on.give(impl_->optimizer_step.outcome()->loss_tensor());
}

at::Tensor Engine::forward(const data::Batch& batch) {
  impl_->check_whole("forward()");
  const StepGraph::OnStream on(impl_->graph.get());
  at::Tensor loss;
  impl_->drop_on_failure([&] { loss = impl_->forward(batch); });
  return on.give(std::move(loss));
}
void Engine::backward(const at::Tensor& loss) {
  if (impl_->parts.stepper.may_step_in_backward) {
    impl_->check_released();
  }
  const StepGraph::OnStream on(impl_->graph.get());
  impl_->backward(loss);
}
void Engine::step() {
  impl_->check_released();
  const StepGraph::OnStream on(impl_->graph.get());
  const int64_t before = impl_->state.global_steps;
  impl_->drop_on_failure([this] { impl_->step(); });
  if (impl_->report && impl_->state.global_steps > before) {
    impl_->report->step(*this);
  }
}

void Engine::zero_grad() {
  impl_->zero_grad();
}
void Engine::set_lr(double lr) {
  check_same_rates(impl_->parts.step_ranks(), {lr}, "set_lr()");
  impl_->parts.stepper.schedule->set_lr(lr);
}
std::unique_ptr<zero::GatheredParameters> Engine::gather_parameters(std::vector<at::Tensor> parameters,
                                                                    std::optional<int> modifier_rank) {
  if (!impl_->in_the_middle_of_a_step()) {
    impl_->optimizer_step.finish_delayed();
  }
  return std::make_unique<zero::GatheredParameters>(impl_->parts.buffers.coordinator, std::move(parameters),
                                                    modifier_rank);
}
std::shared_ptr<torch::nn::Module> Engine::gather_model() {
  impl_->check_whole("gather_model()");
  return TrainingState(*impl_).gather_model();
}
std::shared_ptr<void> Engine::mean_of_replicas() {
  impl_->check_whole("mean_of_replicas()");
  return impl_->replica_mean();
}
void Engine::finish_delayed_update() {
  impl_->check_whole("finish_delayed_update()");
  impl_->optimizer_step.finish_delayed();
}
torch::nn::Module& Engine::module() {
  return *impl_->parts.model.module;
}

void Engine::save_checkpoint(const std::filesystem::path& folder, const std::string& tag) {
  save_checkpoint(folder, tag, nlohmann::json::object());
}

void Engine::save_checkpoint(const std::filesystem::path& folder, const std::string& tag,
                             const nlohmann::json& client_state, int64_t keep_last) {
  checkpoint::SaveOptions options(impl_->parts.settings.checkpoint);
  options.keep_last = keep_last;
  if (const auto token = impl_->parts.settings.run_token) {
    options.check_claim = [token] { token->check(); };
  }
  impl_->check_whole("save_checkpoint()");
  const Note note("checkpoint of step", impl_->state.global_steps);
  fault::at(fault::Phase::checkpoint);
  TrainingState(*impl_).save(folder, tag.empty() ? checkpoint::step_tag(impl_->state.global_steps) : tag, client_state,
                             options);
}

std::optional<nlohmann::json> Engine::load_checkpoint(const std::filesystem::path& folder, const std::string& tag) {
  impl_->check_usable();
  if (tag.empty() && !checkpoint::find_newest(folder, impl_->parts.ranks.everyone)) {
    const std::string name = (folder / "").parent_path().filename().string(); // with or without a trailing slash
    if (name.starts_with("global_step") && checkpoint::step_of(name) >= 0) {
      throw InputError("engine", concat("there is no checkpoint ", folder.string()),
                       "Name an existing one, or the folder that contains them.");
    }
    return std::nullopt;
  }
  impl_->check_released();
  const Note note("load of a checkpoint");
  return TrainingState(*impl_).load(folder, tag);
}

} // namespace trireme::engine
