#include <trireme/engine/engine.h>

#include <trireme/base/error.h>
#include <trireme/base/fault.h>
#include <trireme/base/log.h>
#include <trireme/base/notes.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/engine/engine_impl.h>
#include <trireme/engine/preemption.h>
#include <trireme/engine/training_state.h>
#include <trireme/monitor/chrome_trace.h>

#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace trireme::engine {
namespace {

// Riders of the first flat buffer: the loss, and how many ranks have been asked to stop.
constexpr int64_t kLoss = 0;
constexpr int64_t kStop = 1;
// A run whose loss stays NaN is over; going on only costs money.
constexpr int64_t kMaxSkipsInARow = 20;

class Stopwatch {
 public:
  explicit Stopwatch(double& sum) : sum_(sum), start_(Clock::now()) {}
  ~Stopwatch() {
    sum_ += std::chrono::duration<double>(Clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& sum_;
  Clock::time_point start_;
};

// What TRIREME_FAULT makes of a value that autograd goes through.
at::Tensor spoiled(const at::Tensor& value, fault::Effect effect) {
  return effect == fault::Effect::nan ? value * std::numeric_limits<double>::quiet_NaN() : value;
}

// A micro-batch of nothing but padding stays as it is: it counts for nothing, but stages wait for it.
data::Batch without_padding(data::Batch micro_batch) {
  for (auto* tensors : {&micro_batch.inputs, &micro_batch.targets}) {
    for (at::Tensor& tensor : *tensors) {
      tensor = micro_batch.samples == 0 ? tensor : tensor.narrow(0, 0, micro_batch.samples);
    }
  }
  return micro_batch;
}

} // namespace

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

bool Engine::Impl::at_boundary() const {
  return (micro_steps + 1) % batch.accumulation == 0;
}

double Engine::Impl::exposed_seconds() const {
  return reducer->exposed_seconds() + (parameter_gather ? parameter_gather->exposed_seconds() : 0);
}

void Engine::Impl::start_step() {
  running = StepTimes();
  waiting_for_stages = 0;
  step_start = Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(loading));
  fault::set_step(global_steps + 1);
  exposed_before = exposed_seconds();
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
  const Stopwatch watch(running.forward);
  const monitor::Span span("forward");
  const Note note("forward of step", global_steps + 1);
  const fault::Effect effect = fault::at(fault::Phase::forward);
  if (!model->is_training()) {
    model->train();
  }
  return spoiled(loss_function(micro_batch), effect);
}

// Every stage reduces its buckets as soon as the backward of its last micro-batch fills them.
void Engine::Impl::run_pipeline(const std::function<data::Batch()>& next) {
  if (micro_steps % batch.accumulation != 0) {
    throw InputError("engine", "train_batch() in the middle of a step", "Finish the step with forward(), backward() and step() first.");
  }
  start_step();
  const Note note("step", global_steps + 1);
  if (!model->is_training()) {
    model->train();
  }
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
  const auto loaded = [&] { return load(next); };
  loss_sum = executor->train(static_cast<int>(batch.accumulation), micro_steps, 1 / micro_batches, loaded, callbacks) / micro_batches;
  running.forward = executor->seconds().forward;
  running.backward = executor->seconds().backward;
  micro_steps += batch.accumulation - 1;
}

void Engine::Impl::backward(const at::Tensor& loss) {
  if (loss.dim() != 0 && loss.numel() != 1) {
    throw InputError("engine", concat("backward() needs a loss of one element, got shape ", loss.sizes()), "Return the mean from the loss function.");
  }
  const Stopwatch watch(running.backward);
  const monitor::Span span("backward");
  const Note note("backward of step", global_steps + 1);
  const at::Tensor root = spoiled(loss, fault::at(fault::Phase::backward));
  loss_sum += loss.item<double>() / static_cast<double>(batch.accumulation);
  if (at_boundary()) {
    set_riders();
  }
  // Sharded gradients are added up as shards, so every micro-batch is reduced.
  reducer->set_synchronising(at_boundary() || buffers.front()->gradients_are_sharded());
  if (batch.accumulation == 1) {
    root.backward();
  } else {
    (root / static_cast<double>(batch.accumulation)).backward();
  }
}

void Engine::Impl::step() {
  if (!at_boundary()) {
    ++micro_steps;
    return;
  }
  ++micro_steps;
  {
    const Stopwatch watch(running.optimizer);
    const monitor::Span span("optimizer");
    const Note note("optimizer of step", global_steps + 1);
    fault::at(fault::Phase::step);
    if (!reducer->order_is_learned()) {
      reducer->finish(); // moves the buffers, so before anything looks at buckets
    }
    update();
  }
  for (const auto& buffer : buffers) {
    buffer->clear_grads();
  }
  loss_sum = 0;
  ++global_steps;
  global_samples += batch.train;
  running.exposed_communication = exposed_seconds() - exposed_before;
  running.optimizer -= running.exposed_communication + waiting_for_stages;
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

void Engine::Impl::set_riders() {
  const at::Tensor riders = buffers.front()->riders();
  riders[kLoss] = loss_sum;
  riders[kStop] = Preemption::asked() == 0 ? 0 : 1;
}

// The mean over the data ranks. It travels with the first bucket, so it is there before any weight changes; so does whether
// one of them was asked to stop.
double Engine::Impl::reduced_loss() {
  stop_agreed = false;
  if (buffers.empty()) { // a stage that trains nothing
    if (!has_loss()) {
      return 0;
    }
    at::Tensor sums = torch::tensor({loss_sum, Preemption::asked() == 0 ? 0.0 : 1.0}, torch::kFloat64);
    group.all_reduce(sums, comm::ReduceOp::sum, "loss").wait();
    stop_agreed = sums[1].item<double>() > 0;
    return sums[0].item<double>() / group.size();
  }
  reducer->wait(0, 0);
  const at::Tensor riders = buffers.front()->riders();
  stop_agreed = riders[kStop].item<double>() > 0;
  return riders[kLoss].item<double>() / (group.size() == 1 ? 1 : reducer->pre_scale() * group.size());
}

// The optimizer's part of a step. Every rank sees the same loss and norm, so all skip or none does.
// Without a norm to wait for, buckets are stepped while later ones still travel.
void Engine::Impl::update() {
  const double reduce_scale = group.size() == 1 ? 1 : reducer->post_scale();
  const bool needs_norm = clipping > 0 || norm_wanted;
  double clip = 1;
  grad_norm.reset();
  mean_loss = reduced_loss();
  double squared_norm = 0;
  if (needs_norm) {
    reducer->finish();
    squared_norm = optimizer->squared_grad_norm();
    if (group.size() > 1) {
      at::Tensor sum = torch::tensor({squared_norm}, torch::kFloat64);
      group.all_reduce(sum, comm::ReduceOp::sum, "gradient norm").wait();
      squared_norm = sum.item<double>();
    }
  }
  if (pipe.size() > 1) {
    const Stopwatch watch(waiting_for_stages);
    at::Tensor sums = torch::tensor({mean_loss, squared_norm, stop_agreed ? 1.0 : 0.0}, torch::kFloat64);
    pipe.all_reduce(sums, comm::ReduceOp::sum, "loss and gradient norm").wait();
    mean_loss = sums[0].item<double>();
    squared_norm = sums[1].item<double>();
    stop_agreed = sums[2].item<double>() > 0;
  }
  bool finite = std::isfinite(mean_loss);
  if (needs_norm) {
    grad_norm = std::sqrt(squared_norm) * reduce_scale;
    finite = finite && std::isfinite(*grad_norm);
    clip = clipping > 0 ? std::min(1.0, clipping / (*grad_norm + 1e-6)) : 1;
  }
  if (!finite) {
    reducer->finish();
    skip();
    return;
  }
  skips_in_a_row = 0;
  lr = schedule->lr();
  optimizer->begin_step(lr, schedule->betas(), reduce_scale * clip);
  if (optimizer->needs_norms()) {
    reducer->finish();
    optimizer->prepare();
  }
  for (size_t b = 0; b < buffers.size(); ++b) {
    const auto buckets = static_cast<int64_t>(buffers[b]->layout().buckets().size());
    for (int64_t k = 0; k < buckets; ++k) {
      reducer->wait(static_cast<int64_t>(b), k);
      optimizer->step_bucket(static_cast<int64_t>(b), k);
      if (parameter_gather) {
        parameter_gather->start(static_cast<int64_t>(b), k);
      }
    }
  }
  if (parameter_gather) {
    parameter_gather->finish();
  }
  schedule->advance();
}

void Engine::Impl::skip() {
  ++skipped_steps;
  log::warning("step ", global_steps + 1, " skipped on all ranks: the ", std::isfinite(mean_loss) ? "gradient norm" : "loss", " is not finite (",
               skipped_steps, " skipped so far)");
  if (++skips_in_a_row >= kMaxSkipsInARow) {
    throw Error("engine", concat(kMaxSkipsInARow, " steps in a row had no finite loss or gradient; the last was step ", global_steps + 1),
                "Lower the learning rate or look at the data; the last checkpoint is from before this.");
  }
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
  if (impl_->executor) {
    impl_->run_pipeline(next);
    step();
  } else {
    for (int64_t i = 0; i < impl_->batch.accumulation; ++i) {
      backward(forward(impl_->load(next)));
      step();
    }
  }
  return torch::tensor(impl_->mean_loss, torch::kFloat64);
}

at::Tensor Engine::forward(const data::Batch& batch) {
  return impl_->forward(batch);
}
void Engine::backward(const at::Tensor& loss) {
  impl_->backward(loss);
}
void Engine::step() {
  const int64_t before = impl_->global_steps;
  impl_->step();
  if (impl_->report && impl_->global_steps > before) {
    impl_->report->step(*this);
  }
}

at::Tensor Engine::eval_batch(const data::Batch& batch) {
  const Impl::LossSum sum = impl_->executor ? impl_->evaluate_pipeline(1, [&batch] { return batch; }) : impl_->evaluate(batch);
  return torch::tensor(impl_->mean_over_ranks(sum), torch::kFloat64);
}

double Engine::evaluate(data::DataLoader& loader, int64_t max_batches) {
  loader.start_epoch(0);
  Impl::LossSum sum;
  const auto add = [&sum](const Impl::LossSum& one) {
    sum.loss += one.loss;
    sum.samples += one.samples;
  };
  if (impl_->executor) {
    const int64_t all = loader.batches_per_epoch();
    const int64_t count = max_batches == 0 ? all : std::min(all, max_batches);
    const int64_t at_once = std::max<int64_t>(impl_->batch.accumulation, 4 * impl_->pipe.size()); // to fill the pipeline
    for (int64_t done = 0; done < count; done += at_once) {
      add(impl_->evaluate_pipeline(std::min(at_once, count - done), [&loader] { return *loader.next(); }));
    }
    return impl_->mean_over_ranks(sum);
  }
  for (int64_t i = 0; max_batches == 0 || i < max_batches; ++i) {
    const auto batch = loader.next();
    if (!batch) {
      break;
    }
    add(impl_->evaluate(*batch));
  }
  return impl_->mean_over_ranks(sum);
}

Engine::Impl::LossSum Engine::Impl::evaluate(const data::Batch& micro_batch) {
  const torch::NoGradGuard no_grad;
  if (micro_batch.samples == 0) {
    return {};
  }
  const Note note("evaluation after step", global_steps);
  model->eval();
  const auto real = static_cast<double>(micro_batch.samples);
  return {loss_function(without_padding(micro_batch)).item<double>() * real, real};
}

Engine::Impl::LossSum Engine::Impl::evaluate_pipeline(int64_t micro_batches, const std::function<data::Batch()>& next) {
  LossSum sum;
  const Note note("evaluation after step", global_steps);
  model->eval();
  executor->evaluate(
      static_cast<int>(micro_batches), [&next] { return without_padding(next()); },
      [&](const pipeline::Tensors& outputs, const data::Batch& micro_batch) {
        const auto real = static_cast<double>(micro_batch.samples);
        sum.loss += real == 0 ? 0 : layers->loss(outputs, micro_batch.targets).item<double>() * real;
        sum.samples += real;
      });
  return sum;
}

double Engine::Impl::mean_over_ranks(const LossSum& sum) const {
  at::Tensor both = torch::tensor({sum.loss, sum.samples}, torch::kFloat64);
  everyone.all_reduce(both, comm::ReduceOp::sum, "evaluation loss").wait();
  const double samples = both[1].item<double>();
  if (samples == 0) {
    throw InputError("engine", "there is nothing to evaluate: no rank got a sample");
  }
  return both[0].item<double>() / samples;
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
torch::nn::Module& Engine::module() {
  return *impl_->model;
}

void Engine::save_checkpoint(const std::filesystem::path& folder, const std::string& tag, const nlohmann::json& client_state, int64_t keep_last) {
  checkpoint::SaveOptions options(impl_->checkpoint);
  options.keep_last = keep_last;
  const Note note("checkpoint of step", impl_->global_steps);
  fault::at(fault::Phase::checkpoint);
  TrainingState(*impl_).save(folder, tag.empty() ? checkpoint::step_tag(impl_->global_steps) : tag, client_state, options);
}

std::optional<nlohmann::json> Engine::load_checkpoint(const std::filesystem::path& folder, const std::string& tag) {
  if (tag.empty() && !checkpoint::find_newest(folder) && !std::filesystem::exists(folder / "manifest.json")) {
    return std::nullopt;
  }
  const Note note("load of a checkpoint");
  return TrainingState(*impl_).load(folder, tag);
}

} // namespace trireme::engine
