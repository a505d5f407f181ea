#include <trireme/engine/optimizer_step.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/device/host_scalars.h>
#include <trireme/engine/preemption.h>
#include <trireme/engine/same_rates.h>

#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::engine {
namespace {

bool any(const std::vector<std::vector<bool>>& flags) {
  return std::any_of(flags.begin(), flags.end(),
                     [](const auto& some) { return std::find(some.begin(), some.end(), true) != some.end(); });
}

} // namespace

void OptimizerStep::send_loss(const at::Tensor& sum) {
  sent_ = true;
  const at::Device device = parts_.device();
  if (device.is_cpu() || (parts_.stepper.may_step_in_backward && !norm_wanted_)) {
    send_to_ranks(device::read_scalars({sum}).front());
  } else {
    loss_ = sum.defined() ? device::scalar_on(device, sum)
                          : torch::zeros({}, at::TensorOptions(torch::kFloat64).device(device));
    send_to_ranks(0); // the hosts exchange the rest
  }
}

void OptimizerStep::send_to_ranks(double loss_sum) {
  const parallel::GradientSync& sync = *parts_.agreement.sync;
  loss_sums_ = torch::tensor(
      {loss_sum / static_cast<double>(parts_.settings.batch.accumulation), Preemption::asked() == 0 ? 0.0 : 1.0, 1.0},
      torch::kFloat64);
  loss_message_ =
      (sync.ranks_meet() ? sync.group() : sync.step_group()).all_reduce(loss_sums_, comm::ReduceOp::sum, "loss");
}

void OptimizerStep::receive_loss() {
  const Stopwatch watch = clock_.agreement();
  loss_message_.wait();
  // Rounds to fp32, the type of losses: further digits depend on the order in which backends add.
  mean_loss_ = static_cast<float>(loss_sums_[0].item<double>() / loss_sums_[2].item<double>());
  stop_agreed_ = parts_.agreement.sync->ranks_meet() && loss_sums_[1].item<double>() > 0;
}

OptimizerStep::Unused OptimizerStep::unused_here() const {
  Unused unused;
  for (const auto& buffer : parts_.buffers.trained) {
    std::vector<bool>& flags = unused.emplace_back();
    for (int64_t i = 0; i < buffer->count(); ++i) {
      flags.push_back(!buffer->was_used(i));
    }
  }
  return unused;
}

// What no rank used is not stepped, as PyTorch leaves out parameters without a gradient. Only when every rank lacks a
// gradient it can be the same one, so the flags themselves travel in such steps only.
OptimizerStep::Unused OptimizerStep::unused_everywhere(Unused unused, double ranks_that_lack_some) const {
  const parallel::GradientSync& sync = *parts_.agreement.sync;
  if (ranks_that_lack_some < (parts_.agreement.several_reduce_groups ? 1 : sync.step_group().size())) {
    return {};
  }
  for (size_t b = 0; b < unused.size(); ++b) {
    const comm::Group& ranks =
        parts_.steps_together() ? sync.groups().of(*parts_.buffers.trained[b]) : sync.step_group();
    std::vector<bool>& flags = unused[b];
    at::Tensor used = torch::zeros({std::ssize(flags)}, torch::kInt64);
    for (int64_t i = 0; i < std::ssize(flags); ++i) {
      used[i] = flags[i] ? 0 : 1;
    }
    ranks.all_reduce(used, comm::ReduceOp::max, "used parameters").wait();
    for (int64_t i = 0; i < std::ssize(flags); ++i) {
      flags[i] = used[i].item<int64_t>() == 0;
    }
  }
  return unused;
}

bool OptimizerStep::agree_on_scale(double lowered) {
  const comm::Group& ranks = parts_.agreement.sync->step_group();
  const bool one_scale = state_.scale.agree(lowered, ranks.size(), parts_.settings.batch.accumulation);
  if (lowered != 0 && ranks.rank() == 0) {
    log::warning("a loss in fp16 does not hold the fixed loss scale: it is ", state_.scale.scaler().scale(),
                 " from now on. Return the loss in fp32 to scale more.");
  }
  return one_scale;
}

// Sums over the ranks of one model: one has the loss and its type, each has a part of the norm.
bool OptimizerStep::agree_on_model(double& squared_norm, bool one_scale) {
  const Stopwatch watch = clock_.agreement();
  StepScale& scale = state_.scale;
  const bool tells = parts_.tells_loss();
  at::Tensor sums = torch::tensor({tells ? mean_loss_ : 0.0, squared_norm, stop_agreed_ ? 1.0 : 0.0,
                                   tells ? scale.scaler().largest() : 0.0, one_scale ? 0.0 : 1.0},
                                  torch::kFloat64);
  parts_.ranks.model_ranks.all_reduce(sums, comm::ReduceOp::sum, "loss and gradient norm").wait();
  mean_loss_ = sums[0].item<double>();
  squared_norm = sums[1].item<double>();
  stop_agreed_ = sums[2].item<double>() > 0;
  scale.limit(sums[3].item<double>());
  return sums[4].item<double>() == 0;
}

// Sums loss and squared norm over data ranks and the ranks of the model as the host does, in the same order: [2], the
// mean loss and the squared norm.
at::Tensor OptimizerStep::agree_on_device(const at::Tensor& norm) {
  const parallel::GradientSync& sync = *parts_.agreement.sync;
  const comm::Group& losses = sync.ranks_meet() ? sync.group() : sync.step_group();
  const comm::Group& norms = sync.step_group();
  const at::Tensor loss =
      std::exchange(loss_, at::Tensor()).reshape({1}).div(static_cast<double>(parts_.settings.batch.accumulation));
  at::Tensor sums =
      torch::cat({loss, norm.defined() ? device::scalar_on(loss.device(), norm) : torch::zeros_like(loss)});
  const auto add_up = [](const comm::Group& ranks, at::Tensor numbers) {
    if (ranks.size() > 1) {
      ranks.all_reduce(numbers, comm::ReduceOp::sum, "loss and gradient norm").wait();
    }
  };
  const at::Tensor mean = sums.slice(0, 0, 1);
  if (losses.size() == norms.size()) {
    add_up(norms, sums);
  } else {
    add_up(losses, mean);
    add_up(norms, sums.slice(0, 1));
  }
  mean.copy_(mean.div(static_cast<double>(losses.size())).to(torch::kFloat32));
  if (!parts_.tells_loss()) {
    mean.zero_();
  }
  add_up(parts_.ranks.model_ranks, sums);
  return sums;
}

// What the host computes of loss and norm in run(), with the same roundings; NaN: the step is skipped.
at::Tensor OptimizerStep::factor_on_device(const at::Tensor& loss_and_norm, bool has_norm, double unscale) const {
  at::Tensor finite = loss_and_norm.slice(0, 0, 1).isfinite();
  at::Tensor factor = torch::full({1}, unscale, loss_and_norm.options());
  if (has_norm) {
    const at::Tensor norm = loss_and_norm.slice(0, 1).sqrt().mul(unscale);
    finite = finite.logical_and(norm.isfinite());
    if (parts_.settings.clipping > 0) {
      factor = factor.mul(torch::full_like(norm, parts_.settings.clipping).div(norm.add(1e-6)).clamp_max(1));
    }
  }
  return torch::where(finite, factor, torch::full_like(factor, std::numeric_limits<double>::quiet_NaN()))
      .to(torch::kFloat32);
}

// A model that knows nothing of ranks may use what is whole on features that are split; its copies would drift apart.
// Sharded gradients are gone by now.
void OptimizerStep::check_split_gradients() {
  if (parts_.model.ordinary && !begun_ && !split_gradients_checked_) {
    parts_.buffers.reducer->finish();
    split_gradients_checked_ = parts_.model.ordinary->check_gradients();
  }
}

// Every rank has the same loss, norm and scale, so all skip the step or none.
// Without a norm, buckets are stepped while later ones are still being reduced.
void OptimizerStep::run() {
  finish_delayed();
  check_split_gradients();
  const bool gradients_stay = parts_.agreement.sync->gradients_stay();
  const bool needs_norm = parts_.settings.clipping > 0 || norm_wanted_ || parts_.looks_for_overflow() || gradients_stay;
  const bool looks_for_unused =
      !parts_.stepper.may_step_in_backward; // a bucket is stepped during backward without knowing about other ranks
  const comm::Group& ranks = parts_.agreement.sync->step_group();
  grad_norm_.reset();
  const bool on_device = loss_.defined(); // loss and norm; the messages below have zeros for them
  const bool begun_in_backward = begun_;
  const torch::NoGradGuard no_grad;
  if (!begun_in_backward) {
    receive_loss();
  }
  at::Tensor norm;
  const bool sums_elsewhere = parts_.agreement.sync->sums_elsewhere();
  if (sums_elsewhere) {
    parts_.buffers.reducer->finish();
  } else if (needs_norm) {
    parts_.buffers.reducer->finish();
    norm = gradients_stay ? parts_.stepper.optimizer->own_squared_grad_norm([&](const bucket::FlatParameters& buffer) {
      return parts_.agreement.sync->groups().of(buffer).size();
    })
                          : parts_.stepper.optimizer->squared_grad_norm();
    if (!gradients_stay && parts_.agreement.sync->ever_alone() && ranks.size() > 1) { // each of them has all of it
      norm = norm / ranks.size();
    }
  }
  const double norm_here = on_device || !norm.defined() ? 0 : device::read_scalars({norm}).front();
  const Unused unused = unused_here();
  const bool lacks_some = any(unused);
  // One reduce group may lack what another has, so all ranks need to know.
  const bool asks_for_unused = looks_for_unused && (lacks_some || parts_.agreement.several_reduce_groups);
  // The norm of the gradients with the loss scale in them; infinite or NaN if one of them is.
  if (parts_.settings.rates_may_differ) {
    check_rates(begun_in_backward ? lr_ : parts_.stepper.schedule->lr());
  }
  at::Tensor sums = torch::tensor({norm_here, lacks_some ? 1.0 : 0.0, state_.scale.lowered()}, torch::kFloat64);
  comm::Work exchange;
  if (ranks.size() > 1 && (needs_norm || looks_for_unused)) {
    exchange = ranks.all_reduce(sums, comm::ReduceOp::sum, "gradient norm, unused parameters and loss scale");
  }
  if (needs_norm || lacks_some ||
      asks_for_unused) { // otherwise nothing depends on it, and buckets are stepped meanwhile
    const Stopwatch watch = clock_.agreement();
    exchange.wait();
  }
  double squared_norm = needs_norm ? sums[0].item<double>() : 0;
  bool one_scale = !parts_.looks_for_overflow() || agree_on_scale(sums[2].item<double>());
  if (parts_.ranks.model_ranks.size() > 1) {
    one_scale = agree_on_model(squared_norm, one_scale);
  }
  double unscale = parts_.agreement.sync->scale() / state_.scale.scaler().scale();
  const auto left_out = [&] { return asks_for_unused ? unused_everywhere(unused, sums[1].item<double>()) : Unused(); };
  const double lr_before = lr_;
  const bool steps_ahead = on_device && one_scale && !gradients_stay &&
                           !parts_.stepper.optimizer->steps_on_host(); // the host steps what it has
  if (on_device) {
    const at::Tensor agreed = agree_on_device(norm);
    device::ScalarsToHost reading({agreed[0], agreed[1]});
    if (steps_ahead) {
      parts_.buffers.coordinator->release_all();
      begin(1, left_out(), factor_on_device(agreed, needs_norm, unscale));
      step_buckets();
    }
    mean_loss_ = reading.wait()[0];
    squared_norm = reading.wait()[1];
  }
  if (sums_elsewhere) {
    const parallel::GradientSync::Agreed agreed = parts_.agreement.sync->agree(mean_loss_, stop_agreed_);
    mean_loss_ = static_cast<float>(agreed.loss);
    stop_agreed_ = agreed.stop;
    squared_norm = agreed.squared_norm;
    unscale = parts_.agreement.sync->scale() / state_.scale.scaler().scale();
  }
  bool finite = std::isfinite(mean_loss_) && one_scale;
  double clip = 1;
  if (needs_norm) {
    grad_norm_ = std::sqrt(squared_norm) * unscale;
    finite = finite && (begun_in_backward || std::isfinite(*grad_norm_)); // a step that has begun is not skipped
    clip = parts_.settings.clipping > 0 ? std::min(1.0, parts_.settings.clipping / (*grad_norm_ + 1e-6)) : 1;
  }
  if (!finite) {
    exchange.wait();
    parts_.buffers.reducer->finish();
    if (steps_ahead) { // and changed nothing
      parts_.stepper.optimizer->cancel_step();
      begun_ = false;
      lr_ = lr_before;
    }
    skip();
    return;
  }
  state_.scale.update(false);
  skipped_.end_row();
  if (!steps_ahead) {
    parts_.buffers.coordinator->release_all();
    if (!begun_in_backward) {
      begin(unscale * clip, left_out());
    }
    step_buckets();
  }
  exchange.wait();
  end_step(true);
  parts_.stepper.schedule->advance();
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
  if (parts_.agreement.sync->end_step(taken)) {
    parts_.stepper.optimizer->refresh_masters();
  }
}

void OptimizerStep::begin(double grad_scale, const Unused& unused, const at::Tensor& device_grad_scale) {
  begun_ = true;
  lr_ = parts_.stepper.schedule->lr();
  if (parts_.stepper.optimizer->set_lr_factors(parts_.stepper.schedule->group_factors()) &&
      parts_.agreement.server != nullptr) {
    throw InputError(
        "engine",
        "a group of the torch optimizer got another lr relative to the others, and parameter servers have their own",
        "Change the lr of all groups by the same factor.");
  }
  parts_.stepper.optimizer->begin_step(lr_, parts_.stepper.schedule->betas(), grad_scale, device_grad_scale);
  for (size_t b = 0; b < unused.size(); ++b) {
    parts_.stepper.optimizer->leave_out(static_cast<int64_t>(b), unused[b]);
  }
  parts_.agreement.sync->begin_step();
  if (parts_.stepper.optimizer->needs_norms() && parts_.agreement.server == nullptr) { // servers have the states
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

// What fails leaves a step that has begun.
void OptimizerStep::finish_delayed() {
  if (!parts_.stepper.optimizer->has_delayed()) {
    return;
  }
  const torch::NoGradGuard no_grad;
  begun_ = true;
  parts_.buffers.coordinator->release_all();
  for_each_bucket([this](int64_t buffer, int64_t bucket) {
    parts_.agreement.sync->step_bucket(*parts_.buffers.trained[buffer], bucket,
                                       [&] { parts_.stepper.optimizer->finish_bucket(buffer, bucket); });
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
  parts_.agreement.sync->step_bucket(*parts_.buffers.trained[buffer], bucket,
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

// The loss was sent before backward, so it arrives before the first bucket: a skipped step changes nothing.
void OptimizerStep::step_in_backward(int64_t buffer, int64_t bucket) {
  if (norm_wanted_ || loss_.defined() || !state_.at_boundary(parts_.settings.batch.accumulation)) {
    return;
  }
  if (!begun_ && stepped_.empty()) {
    receive_loss();
    if (std::isfinite(mean_loss_)) {
      begin(parts_.agreement.sync->scale());
    }
  }
  if (begun_) {
    step_bucket(buffer, bucket);
  }
}

void OptimizerStep::skip() {
  ++state_.skipped_steps;
  const precision::LossScaler::Update scaling = state_.scale.update(true);
  const char* const why = !std::isfinite(mean_loss_)                 ? "the loss is not finite"
                          : grad_norm_ && std::isfinite(*grad_norm_) ? "its losses were scaled by different factors"
                                                                     : "the gradient norm is not finite";
  end_step(false);
  skipped_.skip(parts_, state_, why, scaling);
}

void OptimizerStep::clear() {
  begun_ = false;
  stepped_.clear();
  loss_message_.wait();
  loss_message_ = comm::Work();
  sent_ = false;
  loss_ = loss_sums_ = at::Tensor();
  state_.scale.start_over();
}

} // namespace trireme::engine
