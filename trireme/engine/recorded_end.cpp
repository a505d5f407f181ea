// The end of a step as a graph: norm, sums, factor and the optimizer's kernels with one launch.
//
// The outcome of the step before is settled by then, while the device computes the gradients. So the host knows
// learning rate and loss scale of this one, and sends them with one copy. Later replays overwrite sums and factor:
// outcomes keep copies.
#include <trireme/base/log.h>
#include <trireme/device/host_scalars.h>
#include <trireme/engine/optimizer_step.h>
#include <trireme/engine/preemption.h>
#include <trireme/optim/aten_kernels.h>
#include <trireme/optim/device_kernels.h>

#include <torch/types.h>

#include <cstring>
#include <string>
#include <utility>

namespace trireme::engine {
namespace {

// Words before the rows: unscale(), and what aligns the rows to 16 bytes.
constexpr int64_t kHeaderWords = 4;

} // namespace

at::Tensor OptimizerStep::RecordedEnd::unscale() const {
  return words.slice(0, 0, 2).view(torch::kFloat64);
}

at::Tensor OptimizerStep::RecordedEnd::rows() const {
  return words.slice(0, kHeaderWords).view({-1, kernels::kStepScalars});
}

void OptimizerStep::record_ends(std::unique_ptr<device::GraphPool> pool) {
  parallel::GradientSync& sync = *parts_.agreement.sync;
  const bool reads_scalars = &optim::kernels_for(parts_.buffers.trained.front()->parameter(0)) != &optim::kAtenKernels;
  if (reads_scalars && !parts_.stepper.optimizer->steps_on_host() && !parts_.stepper.may_step_in_backward &&
      parts_.ranks.everyone.size() == 1 && sync.may_end_unknown()) {
    end_pool_ = std::move(pool);
  }
}

// A step in which the process was asked to stop, or that lacks gradients, launches something else.
bool OptimizerStep::has_end() {
  if (!end_pool_ || !replays_end_ || hosts_send() || Preemption::asked() != 0 || UnusedParameters(parts_).asks()) {
    return false;
  }
  return ends_[norm_wanted_] || record_end();
}

void OptimizerStep::launch_end(RecordedEnd& end) {
  const at::Tensor norm = squared_norm_here();
  StepOutcome::OnDevice& there = end.on_device;
  there.has_norm = norm.defined();
  there.sums = sums_on_device(HostSums{UnusedParameters(parts_), {}, {}}, norm);
  there.factor = factor_on_device(there.sums, there.has_norm, end.unscale());
  begin(1, {}, there.factor, end.rows());
  prepare();
  step_buckets();
  end_step(true);
}

// Leaves the host as it was: nothing has run.
bool OptimizerStep::record_end() {
  const at::Device device = parts_.device();
  optim::FlatOptimizer& optimizer = *parts_.stepper.optimizer;
  RecordedEnd end;
  const int64_t words =
      kHeaderWords + optimizer.step_scalars(lr_, parts_.stepper.schedule->betas(), optimizer.steps() + 1).numel();
  end.words_here = device::pinned_host(words, torch::kInt32, device.type());
  end.words = torch::empty({words}, at::TensorOptions(torch::kInt32).device(device));
  end.loss = torch::empty({}, at::TensorOptions(torch::kFloat64).device(device));
  end.graph = end_pool_->graph();
  parts_.buffers.reducer->finish();
  parts_.buffers.coordinator->release_all();
  const at::Tensor loss = std::exchange(loss_, end.loss);
  const std::string why = device::record(*end.graph, [&] { launch_end(end); });
  loss_ = loss;
  stepped_.clear();
  if (std::exchange(begun_, false)) {
    cancel(lr_before_);
  }
  if (!why.empty()) {
    end_pool_.reset();
    log::warning("the end of a step cannot be recorded as a CUDA graph: ", why,
                 ". Its kernels are launched one by one.");
    return false;
  }
  ends_[norm_wanted_] = std::move(end);
  return true;
}

// The last replay has read the pinned words: its outcome is settled.
void OptimizerStep::fill(const RecordedEnd& end) const {
  const optim::FlatOptimizer& optimizer = *parts_.stepper.optimizer;
  const at::Tensor rows = optimizer.step_scalars(lr_, parts_.stepper.schedule->betas(), optimizer.steps());
  const double scale = unscale();
  auto* const here = end.words_here.mutable_data_ptr<int32_t>();
  std::memcpy(here, &scale, sizeof scale);
  std::memcpy(here + kHeaderWords, rows.const_data_ptr(), rows.nbytes());
  end.words.copy_(end.words_here, /*non_blocking=*/true);
  end.loss.copy_(loss_);
}

bool OptimizerStep::launch_recorded(HostSums& host) {
  const RecordedEnd& end = *ends_[norm_wanted_];
  parts_.buffers.reducer->finish();
  parts_.buffers.coordinator->release_all();
  begin(1, {}, end.on_device.factor, end.rows());
  fill(end);
  loss_ = at::Tensor();
  end.graph->replay();
  const StepOutcome::OnDevice copies{end.on_device.sums.clone(), end.on_device.factor.clone(), end.on_device.has_norm,
                                     unscale()};
  return leave_unsettled(host, copies, device::ScalarsToHost(copies.sums.unbind()));
}

} // namespace trireme::engine
