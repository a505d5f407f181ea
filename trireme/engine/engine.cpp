#include <trireme/engine/engine.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/engine/engine_impl.h>
#include <trireme/engine/training_state.h>
#include <trireme/monitor/chrome_trace.h>

#include <torch/torch.h>

#include <cmath>

namespace trireme::engine {
namespace {

// Riders of the first flat buffer: element 0 carries the loss.
constexpr int64_t kLoss = 0;
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

} // namespace

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

bool Engine::Impl::at_boundary() const {
  return (micro_steps + 1) % batch.accumulation == 0;
}

at::Tensor Engine::Impl::forward(const data::Batch& micro_batch) {
  if (micro_steps % batch.accumulation == 0) {
    running = StepTimes();
    step_start = Clock::now();
    exposed_before = reducer->exposed_seconds();
  }
  const Stopwatch watch(running.forward);
  const monitor::Span span("forward");
  if (!model->is_training()) {
    model->train();
  }
  return loss_function(micro_batch);
}

void Engine::Impl::backward(const at::Tensor& loss) {
  if (loss.dim() != 0 && loss.numel() != 1) {
    throw InputError("engine", concat("backward() needs a loss of one element, got shape ", loss.sizes()), "Return the mean from the loss function.");
  }
  const Stopwatch watch(running.backward);
  const monitor::Span span("backward");
  loss_sum += loss.item<double>() / static_cast<double>(batch.accumulation);
  if (at_boundary()) {
    buffers.front()->riders()[kLoss] = loss_sum;
  }
  reducer->set_synchronising(at_boundary());
  if (batch.accumulation == 1) {
    loss.backward();
  } else {
    (loss / static_cast<double>(batch.accumulation)).backward();
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
  running.exposed_communication = reducer->exposed_seconds() - exposed_before;
  running.optimizer -= running.exposed_communication;
  running.total = std::chrono::duration<double>(Clock::now() - step_start).count();
  times = running;
}

// The loss travels with the first bucket, so it is there before any weight changes.
void Engine::Impl::read_loss() {
  reducer->wait(0, 0);
  const double sum = buffers.front()->riders()[kLoss].item<double>();
  mean_loss = sum / (group.size() == 1 ? 1 : reducer->pre_scale() * group.size());
}

// The optimizer's part of a step. Every rank sees the same loss and norm, so all skip or none does.
// Without a norm to wait for, buckets are stepped while later ones still travel.
void Engine::Impl::update() {
  const double reduce_scale = group.size() == 1 ? 1 : reducer->post_scale();
  double clip = 1;
  grad_norm.reset();
  read_loss();
  bool finite = std::isfinite(mean_loss);
  if (clipping > 0 || norm_wanted) {
    reducer->finish();
    grad_norm = std::sqrt(optimizer->squared_grad_norm()) * reduce_scale;
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
  for (size_t b = 0; b < buffers.size(); ++b) {
    const auto buckets = static_cast<int64_t>(buffers[b]->layout().buckets().size());
    for (int64_t k = 0; k < buckets; ++k) {
      reducer->wait(static_cast<int64_t>(b), k);
      optimizer->step_bucket(static_cast<int64_t>(b), k);
    }
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
  return train_batch([this] { return impl_->loader->next(); });
}

at::Tensor Engine::train_batch(const std::function<data::Batch()>& next) {
  for (int64_t i = 0; i < impl_->batch.accumulation; ++i) {
    backward(forward(next()));
    step();
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
  return torch::tensor(impl_->mean_over_ranks(impl_->evaluate(batch)), torch::kFloat64);
}

double Engine::evaluate(data::DataLoader& loader, int64_t max_batches) {
  loader.start_epoch(0);
  Impl::LossSum sum;
  for (int64_t i = 0; max_batches == 0 || i < max_batches; ++i) {
    const auto batch = loader.next();
    if (!batch) {
      break;
    }
    const Impl::LossSum one = impl_->evaluate(*batch);
    sum.loss += one.loss;
    sum.samples += one.samples;
  }
  return impl_->mean_over_ranks(sum);
}

Engine::Impl::LossSum Engine::Impl::evaluate(const data::Batch& micro_batch) {
  const torch::NoGradGuard no_grad;
  const auto real = static_cast<double>(micro_batch.samples);
  if (micro_batch.samples == 0) {
    return {};
  }
  data::Batch rows = micro_batch; // without the padding
  for (auto* tensors : {&rows.inputs, &rows.targets}) {
    for (at::Tensor& tensor : *tensors) {
      tensor = tensor.narrow(0, 0, micro_batch.samples);
    }
  }
  model->eval();
  const double loss = loss_function(rows).item<double>();
  return {loss * real, real};
}

double Engine::Impl::mean_over_ranks(const LossSum& sum) const {
  at::Tensor both = torch::tensor({sum.loss, sum.samples}, torch::kFloat64);
  group.all_reduce(both, comm::ReduceOp::sum, "evaluation loss").wait();
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
double Engine::loss() const {
  return impl_->mean_loss;
}
const comm::Group& Engine::group() const {
  return impl_->group;
}
torch::nn::Module& Engine::module() {
  return *impl_->model;
}

void Engine::save_checkpoint(const std::filesystem::path& folder, const std::string& tag, const nlohmann::json& client_state, int64_t keep_last) {
  checkpoint::SaveOptions options(impl_->checkpoint);
  options.keep_last = keep_last;
  TrainingState(*impl_).save(folder, tag.empty() ? checkpoint::step_tag(impl_->global_steps) : tag, client_state, options);
}

std::optional<nlohmann::json> Engine::load_checkpoint(const std::filesystem::path& folder, const std::string& tag) {
  if (tag.empty() && !checkpoint::find_newest(folder) && !std::filesystem::exists(folder / "manifest.json")) {
    return std::nullopt;
  }
  return TrainingState(*impl_).load(folder, tag);
}

} // namespace trireme::engine
