#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/engine/engine_impl.h>
#include <trireme/engine/preemption.h>
#include <trireme/engine/stopwatch.h>
#include <trireme/precision/cast.h>

#include <torch/utils.h>

#include <algorithm>
#include <cmath>

namespace trireme::engine {
namespace {

// Riders of the first flat buffer: the loss, and how many ranks have been asked to stop.
constexpr int64_t kLoss = 0;
constexpr int64_t kStop = 1;
// A run whose loss stays NaN is over; going on only costs money. A loss scale that still falls is another matter.
constexpr int64_t kMaxSkipsInARow = 20;
// From this one on it is looked where NaN and Inf come from.
constexpr int64_t kExplainAfter = 3;

} // namespace

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

// By buffer and parameter.
std::vector<std::vector<bool>> Engine::Impl::unused_here() const {
  std::vector<std::vector<bool>> unused;
  for (const auto& buffer : buffers) {
    std::vector<bool>& flags = unused.emplace_back();
    for (int64_t i = 0; i < buffer->count(); ++i) {
      flags.push_back(!buffer->was_used(i));
    }
  }
  return unused;
}

// What no rank used is not stepped, as PyTorch leaves out parameters without a gradient. Only when every rank lacks a gradient it can be the same
// one, so the flags themselves travel in such steps only.
std::vector<std::vector<bool>> Engine::Impl::unused_everywhere(double ranks_that_lack_some) {
  std::vector<std::vector<bool>> unused = unused_here();
  if (group.size() > 1 && ranks_that_lack_some < group.size()) {
    return {};
  }
  if (group.size() > 1) {
    for (std::vector<bool>& flags : unused) {
      at::Tensor used = torch::zeros({std::ssize(flags)}, torch::kInt64);
      for (int64_t i = 0; i < std::ssize(flags); ++i) {
        used[i] = flags[i] ? 0 : 1;
      }
      group.all_reduce(used, comm::ReduceOp::max, "used parameters").wait();
      for (int64_t i = 0; i < std::ssize(flags); ++i) {
        flags[i] = used[i].item<int64_t>() == 0;
      }
    }
  }
  return unused;
}

// 0 where the scale is the agreed one; else 1, or less where some gradients of this step have the agreed one all the same.
double Engine::Impl::lowered_scale() const {
  return scaler.scale() == agreed_scale ? 0 : scale_was_lowered_between ? 0.5 : 1;
}

// Lowers the scale where any rank's loss has asked for it. False when other gradients of this step are scaled by more.
bool Engine::Impl::agree_on_scale(double lowered) {
  if (lowered == 0) {
    return true;
  }
  scaler.limit(precision::largest_power(at::kHalf) * static_cast<double>(batch.accumulation));
  if (group.rank() == 0) {
    log::warning("a loss in fp16 does not hold the fixed loss scale: it is ", scaler.scale(), " from now on. Return the loss in fp32 to scale more.");
  }
  return lowered == group.size();
}

// Every rank sees the same loss, norm and scale, so all skip or none does.
// Without a norm to wait for, buckets are stepped while later ones still travel.
void Engine::Impl::update() {
  const bool needs_norm = clipping > 0 || norm_wanted || looks_for_overflow();
  const bool looks_for_unused = !may_step_in_backward; // a bucket that was stepped during backward knew nothing of other ranks
  double clip = 1;
  grad_norm.reset();
  mean_loss = stepping ? mean_loss : reduced_loss();
  if (needs_norm) {
    reducer->finish();
  }
  // Of the gradients as they are, scaled by whatever; infinite or NaN when one of them is.
  double squared_norm = needs_norm ? optimizer->squared_grad_norm() : 0;
  const auto local = unused_here();
  const bool lacks_some = std::any_of(local.begin(), local.end(), [](const auto& flags) { return std::find(flags.begin(), flags.end(), true) != flags.end(); });
  at::Tensor ranks_sum = torch::tensor({squared_norm, lacks_some ? 1.0 : 0.0, lowered_scale()}, torch::kFloat64);
  comm::Work exchange;
  if (group.size() > 1 && (needs_norm || looks_for_unused)) {
    exchange = group.all_reduce(ranks_sum, comm::ReduceOp::sum, "gradient norm, unused parameters and loss scale");
  }
  if (needs_norm || lacks_some) { // else nothing depends on it: buckets are stepped meanwhile
    exchange.wait();
    squared_norm = ranks_sum[0].item<double>();
  }
  bool one_scale = looks_for_overflow() ? agree_on_scale(ranks_sum[2].item<double>()) : true;
  if (pipe.size() > 1) {
    const Stopwatch watch(waiting_for_stages);
    at::Tensor sums = torch::tensor({mean_loss, squared_norm, stop_agreed ? 1.0 : 0.0, has_loss() ? scaler.largest() : 0.0, one_scale ? 0.0 : 1.0}, torch::kFloat64);
    pipe.all_reduce(sums, comm::ReduceOp::sum, "loss and gradient norm").wait();
    mean_loss = sums[0].item<double>();
    squared_norm = sums[1].item<double>();
    stop_agreed = sums[2].item<double>() > 0;
    scaler.limit(sums[3].item<double>()); // only the last stage knows the loss's type
    one_scale = sums[4].item<double>() == 0;
  }
  used_scale = scaler.scale();
  const double unscale = (group.size() == 1 ? 1 : reducer->post_scale()) / used_scale;
  bool finite = std::isfinite(mean_loss) && one_scale;
  if (needs_norm) {
    grad_norm = std::sqrt(squared_norm) * unscale;
    finite = finite && (stepping || std::isfinite(*grad_norm)); // a step that has begun is not skipped any more
    clip = clipping > 0 ? std::min(1.0, clipping / (*grad_norm + 1e-6)) : 1;
  }
  const precision::LossScaler::Update scaling = scaler.update(!finite);
  agreed_scale = scaling.scale;
  if (!finite) {
    exchange.wait();
    reducer->finish();
    skip(scaling);
    return;
  }
  skips_in_a_row = 0;
  overflow_watch.reset();
  coordinator->release_all();
  if (!stepping) {
    begin_optimizer_step(unscale * clip, looks_for_unused && lacks_some ? unused_everywhere(ranks_sum[1].item<double>()) : std::vector<std::vector<bool>>());
  }
  stepping = true;
  for (size_t b = 0; b < buffers.size(); ++b) {
    for (size_t k = 0; k < buffers[b]->layout().buckets().size(); ++k) {
      step_bucket(static_cast<int64_t>(b), static_cast<int64_t>(k));
    }
  }
  exchange.wait();
  if (parameter_gather) {
    parameter_gather->finish();
  }
  schedule->advance();
}

void Engine::Impl::begin_optimizer_step(double grad_scale, const std::vector<std::vector<bool>>& unused) {
  lr = schedule->lr();
  optimizer->begin_step(lr, schedule->betas(), grad_scale);
  for (size_t b = 0; b < unused.size(); ++b) {
    optimizer->leave_out(static_cast<int64_t>(b), unused[b]);
  }
  if (optimizer->needs_norms()) {
    reducer->finish();
    optimizer->prepare();
  }
}

// Once a step; its parameters travel while the next ones are stepped.
void Engine::Impl::step_bucket(int64_t buffer, int64_t bucket) {
  if (!stepped.emplace(buffer, bucket).second) {
    return;
  }
  reducer->wait(buffer, bucket);
  optimizer->step_bucket(buffer, bucket);
  if (parameter_gather) {
    parameter_gather->start(buffer, bucket);
  }
}

// The loss comes with the first bucket: a step that has to be skipped changes nothing.
void Engine::Impl::step_in_backward(int64_t buffer, int64_t bucket) {
  if (!may_step_in_backward || norm_wanted || !at_boundary()) {
    return;
  }
  if (!stepping && stepped.empty() && bucket == 0 && buffer == 0) {
    mean_loss = reduced_loss();
    stepping = std::isfinite(mean_loss);
    if (stepping) {
      begin_optimizer_step(group.size() == 1 ? 1 : reducer->post_scale());
    }
  }
  if (stepping) {
    step_bucket(buffer, bucket);
  }
}

void Engine::Impl::skip(const precision::LossScaler::Update& scaling) {
  ++skipped_steps;
  ++skips_in_a_row;
  const char* const why = !std::isfinite(mean_loss)               ? "the loss is not finite"
                          : grad_norm && std::isfinite(*grad_norm) ? "its losses were scaled by different factors"
                                                                   : "the gradient norm is not finite";
  if (everyone.rank() == 0) {
    log::warning("step ", global_steps + 1, " skipped on all ranks: ", why,
                 scaling.scale < scaling.used ? concat("; the loss scale falls from ", scaling.used, " to ", scaling.scale) : "", " (", skipped_steps,
                 " skipped so far)");
  }
  if (overflow_watch) {
    overflow_source = overflow_watch->report(everyone);
    overflow_watch.reset();
    if (everyone.rank() == 0) {
      log::warning(overflow_source);
    }
  }
  if (scaling.at_minimum || (skips_in_a_row >= kMaxSkipsInARow && !scaler.dynamic())) {
    throw Error("engine",
                concat(skips_in_a_row, " steps in a row had no finite loss or gradient; the last was step ", global_steps + 1,
                       scaling.at_minimum ? concat(", at the smallest loss scale (", scaling.used, ")") : "", overflow_source.empty() ? "" : ". ", overflow_source),
                "Lower the learning rate or look at the data; the last checkpoint is from before this.");
  }
  if (skips_in_a_row == kExplainAfter) {
    precision::NamedTensors parameters;
    for (const auto& buffer : buffers) {
      for (int64_t i = 0; i < buffer->count(); ++i) {
        parameters.emplace_back(buffer->name(i), buffer->parameter(i));
      }
    }
    overflow_watch = std::make_unique<precision::OverflowWatch>(parameters);
  }
}

} // namespace trireme::engine
