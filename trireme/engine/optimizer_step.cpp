#include <trireme/engine/optimizer_step.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/device/host_scalars.h>
#include <trireme/engine/preemption.h>
#include <trireme/engine/same_rates.h>
#include <trireme/engine/step_factor.h>

#include <torch/utils.h>

#include <cmath>
#include <limits>

namespace trireme::engine {
namespace {

class ReducedGradients final : public parallel::StepGradients {
 public:
  explicit ReducedGradients(const Parts& parts) : parts_(parts) {}

  at::Tensor squared_norm() override {
    parts_.buffers.reducer->finish();
    const at::Tensor norm = parts_.stepper.optimizer->squared_grad_norm();
    const int ranks = parts_.agreement.sync->step_group().size();
    return ranks > 1 && parts_.agreement.sync->local_steps() != nullptr ? norm / ranks
                                                                        : norm; // every one of them has the whole norm
  }
  at::Tensor own_squared_norm() override {
    parts_.buffers.reducer->finish();
    return parts_.stepper.optimizer->own_squared_grad_norm(
        [&](const bucket::FlatParameters& buffer) { return parts_.agreement.sync->groups().of(buffer).size(); });
  }

 private:
  const Parts& parts_;
};

} // namespace

// If the loss scale depends on a step whose outcome is not known, the GPU chooses it.
at::Tensor OptimizerStep::root_gradient(const at::Tensor& loss) {
  const int64_t micro_batches = parts_.settings.batch.accumulation;
  const bool dynamic = state_.scale.scaler().dynamic();
  if (parts_.settings.precision.scales_loss() && !dynamic) {
    settle(); // the loss may lower a fixed scale
  }
  double scale = state_.scale.root_gradient(loss.scalar_type(), micro_batches);
  if (unsettled_ && dynamic) {
    const StepScale::Roots roots = state_.scale.root_gradients(micro_batches);
    if (!loss.is_cpu() && !unsettled_->is_known()) {
      return unsettled_->choose(roots.if_taken, roots.if_skipped).to(loss.scalar_type()).reshape(loss.sizes());
    }
    scale = unsettled_->taken() ? roots.if_taken : roots.if_skipped;
  }
  return torch::full_like(loss, scale, at::TensorOptions(torch::kFloat32).requires_grad(false)).to(loss.scalar_type());
}

void OptimizerStep::send_loss(const at::Tensor& sum) {
  sent_ = true;
  const at::Device device = parts_.device();
  if (device.is_cpu() || (parts_.stepper.may_step_in_backward && !norm_wanted_)) {
    settle(); // the step may begin in backward
    send_to_ranks(device::read_scalars({sum}).front());
  } else {
    loss_ = sum.defined() ? device::scalar_on(device, sum)
                          : torch::zeros({}, at::TensorOptions(torch::kFloat64).device(device));
    if (hosts_send()) {
      send_to_ranks(0); // and loss and norm are summed on the device
    }
  }
}

// On a GPU the hosts exchange something in every step only where its first kernels depend on it: which experts a group
// of ranks has used, and a fixed loss scale that a loss in fp16 lowers. The same on all ranks.
bool OptimizerStep::hosts_send() const {
  return !loss_.defined() || parts_.agreement.several_reduce_groups ||
         (parts_.settings.precision.scales_loss() && !state_.scale.scaler().dynamic());
}

void OptimizerStep::send_to_ranks(double loss_sum) {
  loss_sums_ = torch::tensor(
      {loss_sum / static_cast<double>(parts_.settings.batch.accumulation), Preemption::asked() == 0 ? 0.0 : 1.0, 1.0},
      torch::kFloat64);
  loss_message_ = parts_.agreement.sync->loss_group().all_reduce(loss_sums_, comm::ReduceOp::sum, "loss");
}

void OptimizerStep::receive_loss() {
  const Stopwatch watch = clock_.agreement();
  loss_message_.wait();
  agreed_.loss = mean_over_ranks(loss_sums_[0].item<double>(), loss_sums_[2].item<double>());
  agreed_.stop = parts_.agreement.sync->may_stop() && loss_sums_[1].item<double>() > 0;
}

// A model that ignores tensor ranks may apply whole parameters to split features; their copies would then drift apart.
// Sharded gradients have been freed by now.
void OptimizerStep::check_split_gradients() {
  if (parts_.model.ordinary && !begun_ && !split_gradients_checked_) {
    parts_.buffers.reducer->finish();
    split_gradients_checked_ = parts_.model.ordinary->check_gradients();
  }
}

// All ranks have the same loss, norm and scale, so all skip the step or none does. Without a norm, buckets are stepped
// while later ones are still being reduced.
void OptimizerStep::run() {
  finish_delayed();
  check_split_gradients();
  const torch::NoGradGuard no_grad;
  const bool begun_in_backward = begun_;
  const bool hosts_send = this->hosts_send();
  if (!begun_in_backward) {
    lr_before_ = lr_;
    if (hosts_send) {
      receive_loss();
    }
  }
  const bool replays = has_end();
  const at::Tensor norm = replays ? at::Tensor() : squared_norm_here(); // undefined: the step needs none
  const bool has_norm = replays ? ends_[norm_wanted_]->on_device.has_norm : norm.defined();
  HostSums host = send_sums(norm);
  const bool one_scale = !hosts_send || agree_on_host(host, has_norm);
  const bool launched = loss_.defined() && (replays ? launch_recorded(host) : launch(host, norm, one_scale));
  if (unsettled_) {
    return;
  }
  agreed_ = parts_.agreement.sync->agreement().agree(agreed_);
  const StepFactor<double> step =
      step_factor(agreed_.loss, agreed_.squared_norm, has_norm, unscale(), parts_.settings.clipping);
  StepOutcome::Values values{agreed_.loss, has_norm ? std::optional(step.norm) : std::nullopt, one_scale, agreed_.stop};
  values.taken =
      values.taken && (begun_in_backward ? std::isfinite(agreed_.loss) : step.finite); // not by its norm then
  if (!values.taken) {
    host.message.wait();
    parts_.buffers.reducer->finish();
    if (launched) { // and the kernels changed nothing
      begun_ = false;
      cancel(lr_before_);
    }
    end_step(false);
    outcome_ = std::make_shared<StepOutcome>(settings(), values);
    count_skipped(*outcome_);
    return;
  }
  if (!launched) {
    parts_.buffers.coordinator->release_all();
    if (!begun_in_backward) {
      begin(step.factor, host.left_out());
      prepare();
    }
    step_buckets();
  }
  host.message.wait();
  end_step(true);
  outcome_ = std::make_shared<StepOutcome>(settings(), values);
  count_taken();
}

// Norm of the gradients with the loss scale in them; infinite or NaN if one of them is.
at::Tensor OptimizerStep::squared_norm_here() const {
  ReducedGradients gradients(parts_);
  const bool wanted = parts_.settings.clipping > 0 || norm_wanted_ || parts_.looks_for_overflow();
  return parts_.agreement.sync->agreement().squared_norm(gradients, wanted);
}

// Sends zeros for loss and norm if they are on a GPU.
OptimizerStep::HostSums OptimizerStep::send_sums(const at::Tensor& norm) {
  const comm::Group& ranks = parts_.agreement.sync->step_group();
  const double norm_here = loss_.defined() || !norm.defined() ? 0 : device::read_scalars({norm}).front();
  HostSums host{UnusedParameters(parts_), {}, {}};
  if (parts_.settings.rates_may_differ) {
    check_rates(begun_ ? lr_ : parts_.stepper.schedule->lr());
  }
  if (!hosts_send()) {
    return host;
  }
  host.sums = torch::tensor({norm_here, host.unused.lacks_some() ? 1.0 : 0.0, state_.scale.lowered()}, torch::kFloat64);
  if (ranks.size() > 1 && (norm.defined() || !parts_.stepper.may_step_in_backward)) {
    host.message = ranks.all_reduce(host.sums, comm::ReduceOp::sum, "gradient norm, unused parameters and loss scale");
  }
  if (norm.defined() || host.unused.lacks_some() ||
      host.unused.asks()) { // otherwise no decision needs the sums, and buckets are stepped meanwhile
    const Stopwatch watch = clock_.agreement();
    host.message.wait();
  }
  return host;
}

// Returns whether all gradients of the step have one loss scale.
bool OptimizerStep::agree_on_host(HostSums& host, bool has_norm) {
  host.lacking = host.sums[1].item<double>();
  agreed_.squared_norm = has_norm ? host.sums[0].item<double>() : 0;
  const bool one_scale = !parts_.looks_for_overflow() || agree_on_scale(host.sums[2].item<double>());
  return parts_.ranks.model_ranks.size() > 1 ? agree_on_model(one_scale) : one_scale;
}

bool OptimizerStep::agree_on_scale(double lowered) {
  const comm::Group& ranks = parts_.agreement.sync->step_group();
  const bool one_scale = state_.scale.agree(lowered, ranks.size(), parts_.settings.batch.accumulation);
  if (lowered != 0 && ranks.rank() == 0) {
    log::warning("the fixed loss scale does not fit into a loss in fp16; it is lowered to ",
                 state_.scale.scaler().scale(), ". Return the loss in fp32 for a larger scale.");
  }
  return one_scale;
}

// Sums over the ranks of one replica: one rank has the loss and its type, each has a part of the norm.
bool OptimizerStep::agree_on_model(bool one_scale) {
  const Stopwatch watch = clock_.agreement();
  StepScale& scale = state_.scale;
  const bool tells = parts_.tells_loss();
  at::Tensor sums = torch::tensor({tells ? agreed_.loss : 0.0, agreed_.squared_norm, agreed_.stop ? 1.0 : 0.0,
                                   tells ? scale.scaler().largest() : 0.0, one_scale ? 0.0 : 1.0},
                                  torch::kFloat64);
  parts_.ranks.model_ranks.all_reduce(sums, comm::ReduceOp::sum, "loss and gradient norm").wait();
  agreed_ = {sums[0].item<double>(), sums[1].item<double>(), sums[2].item<double>() > 0};
  scale.limit(sums[3].item<double>());
  return sums[4].item<double>() == 0;
}

// If kernels can be launched before the host knows whether the step is taken, launches them. Returns whether it has
// launched them. Unless the step is then left to settle(), reads loss and norm.
bool OptimizerStep::launch(HostSums& host, const at::Tensor& norm, bool one_scale) {
  const bool launches = one_scale && !parts_.agreement.sync->agreement().precedes_step() &&
                        !parts_.stepper.optimizer->steps_on_host(); // the host needs the factor for its buckets
  StepOutcome::OnDevice on_device{sums_on_device(host, norm), {}, norm.defined(), unscale()};
  device::ScalarsToHost reading(on_device.sums.unbind());
  if (!host.sums.defined() && (!launches || host.unused.asks())) {
    const Stopwatch watch = clock_.agreement();
    host.lacking = reading.wait()[StepOutcome::kLacking];
  }
  if (launches) {
    parts_.buffers.coordinator->release_all();
    on_device.factor = factor_on_device(on_device.sums, norm.defined(), unscale());
    begin(1, host.left_out(), on_device.factor);
    prepare();
    step_buckets();
    return leave_unsettled(host, on_device, std::move(reading));
  }
  read_sums(host, reading);
  return false;
}

// The kernels are launched. Skipped steps in a row are reported and ended in order. Returns true.
bool OptimizerStep::leave_unsettled(HostSums& host, const StepOutcome::OnDevice& on_device,
                                    device::ScalarsToHost reading) {
  if (parts_.agreement.sync->may_end_unknown() && !skipped_.in_row()) {
    host.message.wait();
    end_step(true);
    outcome_ = unsettled_ = std::make_shared<StepOutcome>(settings(), on_device, std::move(reading));
  } else {
    read_sums(host, reading);
  }
  return true;
}

void OptimizerStep::read_sums(const HostSums& host, device::ScalarsToHost& reading) {
  const std::vector<double>& sums = reading.wait();
  agreed_.loss = sums[StepOutcome::kLoss];
  agreed_.squared_norm = sums[StepOutcome::kSquaredNorm];
  if (!host.sums.defined()) {
    agreed_.stop = sums[StepOutcome::kStop] > 0;
  }
}

// Sums over data ranks and model ranks, in the same order as the hosts do. Returns StepOutcome::OnDevice::sums. A rank
// that lacks gradients waits for their number, and only if every rank lacks some, so that all wait, do the hosts
// exchange which.
at::Tensor OptimizerStep::sums_on_device(const HostSums& host, const at::Tensor& norm) {
  const comm::Group& losses = parts_.agreement.sync->loss_group();
  const comm::Group& norms = parts_.agreement.sync->step_group();
  const at::Tensor loss =
      std::exchange(loss_, at::Tensor()).reshape({1}).div(static_cast<double>(parts_.settings.batch.accumulation));
  const bool sends = !host.sums.defined();
  const bool stop = sends ? parts_.agreement.sync->may_stop() && Preemption::asked() != 0 : agreed_.stop;
  if (!zeros_.defined()) {
    zeros_ = torch::zeros({StepOutcome::kSums - 1}, loss.options());
  }
  at::Tensor sums = norm.defined()
                        ? torch::cat({loss, device::scalar_on(loss.device(), norm).reshape({1}), zeros_.slice(0, 1)})
                        : torch::cat({loss, zeros_});
  const auto place = [&sums](int64_t i) { return sums.slice(0, i, i + 1); };
  if (stop) {
    place(StepOutcome::kStop).fill_(1); // no launch in a step like any other
  }
  if (sends && host.unused.lacks_some()) {
    place(StepOutcome::kLacking).fill_(1);
  }
  const auto add_up = [](const comm::Group& ranks, at::Tensor numbers) {
    if (ranks.size() > 1) {
      ranks.all_reduce(numbers, comm::ReduceOp::sum, "loss, gradient norm, stop and unused parameters").wait();
    }
  };
  if (losses.size() == norms.size()) {
    add_up(norms, sums);
  } else { // steps of replicas that are averaged every few steps
    at::Tensor of_losses = torch::cat({place(StepOutcome::kLoss), place(StepOutcome::kStop)});
    add_up(losses, of_losses);
    add_up(norms, sums);
    place(StepOutcome::kLoss).copy_(of_losses.slice(0, 0, 1));
    place(StepOutcome::kStop).copy_(of_losses.slice(0, 1));
  }
  place(StepOutcome::kLoss).copy_(mean_over_ranks(place(StepOutcome::kLoss), losses.size()));
  if (!parts_.tells_loss()) {
    place(StepOutcome::kLoss).zero_();
  }
  add_up(parts_.ranks.model_ranks, sums.slice(0, 0, StepOutcome::kLacking)); // each rank's part lacks its own
  return sums;
}

// NaN means that the step is skipped.
template <typename Scale>
at::Tensor OptimizerStep::factor_on_device(const at::Tensor& sums, bool has_norm, const Scale& unscale) const {
  const auto step = step_factor<at::Tensor>(sums.slice(0, StepOutcome::kLoss, StepOutcome::kLoss + 1),
                                            sums.slice(0, StepOutcome::kSquaredNorm, StepOutcome::kSquaredNorm + 1),
                                            has_norm, unscale, parts_.settings.clipping);
  return torch::where(step.finite, step.factor, torch::full_like(step.factor, std::numeric_limits<double>::quiet_NaN()))
      .to(torch::kFloat32);
}
template at::Tensor OptimizerStep::factor_on_device(const at::Tensor&, bool, const at::Tensor&) const;

// The factor that turns the Reducer's result into the gradient of the step.
double OptimizerStep::unscale() const {
  return parts_.agreement.sync->scale() / state_.scale.scaler().scale();
}

void OptimizerStep::check_rates(double lr) const {
  std::vector<double> rates = parts_.stepper.schedule->group_factors();
  for (double& factor : rates) {
    factor *= lr;
  }
  check_same_rates(parts_.step_ranks(), rates.empty() ? std::vector<double>{lr} : rates,
                   concat("step ", state_.global_steps + 1));
}

void OptimizerStep::end_step(bool taken) {
  if (parts_.agreement.sync->step_exchange().end_step(taken)) {
    parts_.stepper.optimizer->refresh_masters();
  }
}

void OptimizerStep::begin(double grad_scale, const UnusedParameters::Flags& unused, const at::Tensor& device_grad_scale,
                          const at::Tensor& device_scalars) {
  begun_ = true;
  lr_ = parts_.stepper.schedule->lr();
  if (parts_.stepper.optimizer->set_lr_factors(parts_.stepper.schedule->group_factors()) &&
      parts_.agreement.sync->remote_states() != nullptr) {
    throw InputError("engine",
                     "a group of the torch optimizer has changed its lr relative to the others, which parameter "
                     "servers do not follow",
                     "Change the lr of all groups by the same factor.");
  }
  parts_.stepper.optimizer->begin_step(lr_, parts_.stepper.schedule->betas(), grad_scale, device_grad_scale,
                                       device_scalars);
  for (size_t b = 0; b < unused.size(); ++b) {
    parts_.stepper.optimizer->leave_out(static_cast<int64_t>(b), unused[b]);
  }
  parts_.agreement.sync->step_exchange().begin_step();
}

void OptimizerStep::prepare() {
  if (parts_.stepper.optimizer->needs_norms() &&
      parts_.agreement.sync->remote_states() == nullptr) { // servers have the states
    parts_.buffers.reducer->finish();
    parts_.stepper.optimizer->prepare();
  }
}

template <typename F>
void OptimizerStep::for_each_bucket(const F& f) const {
  for (size_t b = 0; b < parts_.buffers.trained.size(); ++b) {
    for (size_t k = 0; k < parts_.buffers.trained[b]->layout().buckets().size(); ++k) {
      f(static_cast<int64_t>(b), static_cast<int64_t>(k));
    }
  }
}

void OptimizerStep::step_buckets() {
  if (parts_.stepper.optimizer->steps_on_host()) { // those that backward has not sent
    for_each_bucket([this](int64_t buffer, int64_t bucket) {
      if (stepped_.count({buffer, bucket}) == 0) {
        parts_.buffers.reducer->wait(buffer, bucket);
        parts_.stepper.optimizer->send_gradient(buffer, bucket);
      }
    });
  }
  for_each_bucket([this](int64_t buffer, int64_t bucket) { step_bucket(buffer, bucket); });
  if (parts_.stepper.optimizer->steps_later()) {
    parts_.stepper.optimizer->start_delayed();
  }
}

void OptimizerStep::settle() {
  const std::shared_ptr<const StepOutcome> last = std::exchange(unsettled_, nullptr);
  if (last) {
    agreed_.stop = last->stop();
  }
  if (last && last->taken()) {
    count_taken();
  } else if (last) { // the kernels changed nothing
    cancel(last->lr());
    count_skipped(*last);
  }
}

// A failure leaves `begun_` set: some parameters are a step ahead of others.
void OptimizerStep::finish_delayed() {
  settle();
  if (!parts_.stepper.optimizer->has_delayed()) {
    return;
  }
  const torch::NoGradGuard no_grad;
  begun_ = true;
  parts_.buffers.coordinator->release_all();
  for_each_bucket([this](int64_t buffer, int64_t bucket) {
    parts_.agreement.sync->step_exchange().step_bucket(
        *parts_.buffers.trained[buffer], bucket, [&] { parts_.stepper.optimizer->finish_bucket(buffer, bucket); });
  });
  end_step(true);
  begun_ = false;
}

void OptimizerStep::step_bucket(int64_t buffer, int64_t bucket) {
  if (!stepped_.emplace(buffer, bucket).second) {
    return;
  }
  parts_.buffers.reducer->wait(buffer, bucket);
  if (parts_.stepper.optimizer->steps_later()) {
    parts_.stepper.optimizer->step_bucket(buffer, bucket);
    return;
  }
  parts_.agreement.sync->step_exchange().step_bucket(*parts_.buffers.trained[buffer], bucket,
                                                     [&] { parts_.stepper.optimizer->step_bucket(buffer, bucket); });
}

void OptimizerStep::bucket_final(int64_t buffer, int64_t bucket) {
  if (parts_.runs_schedule() || state_.at_boundary(parts_.settings.batch.accumulation)) {
    parts_.stepper.optimizer->send_gradient(buffer, bucket);
  }
  if (parts_.stepper.may_step_in_backward) {
    step_in_backward(buffer, bucket);
  }
}

// The loss was sent before backward, so it arrives before the first bucket is stepped: a skipped step changes nothing.
void OptimizerStep::step_in_backward(int64_t buffer, int64_t bucket) {
  if (norm_wanted_ || loss_.defined() || !state_.at_boundary(parts_.settings.batch.accumulation)) {
    return;
  }
  if (!begun_ && stepped_.empty()) {
    receive_loss();
    if (std::isfinite(agreed_.loss)) {
      begin(parts_.agreement.sync->scale());
      prepare();
    }
  }
  if (begun_) {
    step_bucket(buffer, bucket);
  }
}

// Restores the counts of a step whose launched kernels changed nothing.
void OptimizerStep::cancel(double lr_before) {
  parts_.stepper.optimizer->cancel_step();
  lr_ = lr_before;
}

void OptimizerStep::count_taken() {
  state_.scale.update(false);
  skipped_.end_row();
  parts_.stepper.schedule->advance();
}

void OptimizerStep::count_skipped(const StepOutcome& outcome) {
  ++state_.skipped_steps;
  const precision::LossScaler::Update scaling = state_.scale.update(true);
  const char* const why = !std::isfinite(outcome.loss()) ? "the loss is not finite"
                          : outcome.grad_norm() && std::isfinite(*outcome.grad_norm())
                              ? "its losses were scaled by different factors"
                              : "the gradient norm is not finite";
  skipped_.skip(parts_, state_, outcome.step(), why, scaling);
}

StepOutcome::Settings OptimizerStep::settings() const {
  return {state_.global_steps + 1, lr_, lr_before_, state_.scale.scaler().scale()};
}

void OptimizerStep::clear() {
  begun_ = replays_end_ = false;
  stepped_.clear();
  loss_message_.wait();
  loss_message_ = comm::Work();
  sent_ = false;
  loss_ = loss_sums_ = at::Tensor();
  state_.scale.start_over();
}

} // namespace trireme::engine
