#include <trireme/extensions/averaging/averaging_sync.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>

namespace trireme::parallel {
namespace {

constexpr const char* kOuter = "outer_optimizer";

} // namespace

AveragingSync::AveragingSync(ReduceGroups groups, const AveragingOptions& options, std::optional<at::ScalarType> travel)
    : GradientSync(groups), options_(options), outer_(options, group()), summing_(std::move(groups), {}, travel) {
  if (options_.every < 1) {
    throw InputError("parameter averaging",
                     concat("the number of steps between averaging steps is ", options_.every, ", expected >= 1"),
                     "Set \"every\" to a whole number >= 1.");
  }
}

void AveragingSync::attach(const std::vector<bucket::FlatParameters*>& buffers) {
  buffers_ = buffers;
  if (has_outer()) {
    outer_.attach(buffers);
  }
}

// Called before anything changes the values in this round. Changes that a program made since the last averaging step
// belong to the start of the round.
void AveragingSync::keep_start(int64_t buffer, int64_t bucket) {
  using Values = bucket::SteppedValues;
  if (has_outer() && !outer_.has_start(buffer, bucket)) {
    values_->with_values(buffer, bucket, Values::Access::read,
                         [&](const Values::Values& values) { outer_.keep_start(buffer, bucket, values.parameters); });
  }
}

void AveragingSync::step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) {
  if (is_local()) {
    keep_start(std::find(buffers_.begin(), buffers_.end(), &buffer) - buffers_.begin(), bucket);
  }
  step();
}

bool AveragingSync::end_step(bool taken) {
  if (!is_local()) {
    ++steps_;
    return false;
  }
  if (taken) {
    lr_sum_ += values_->lr();
    ++taken_;
  }
  equal_ = ends_round();
  if (equal_) {
    const auto start = std::chrono::steady_clock::now();
    finish_round();
    exposed_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  ++steps_;
  return false; // with_values() has averaged the masters
}

// SlowMo's learning rate is constant in a round. Ranks may have skipped steps, and their schedules with them, so they
// agree on its mean.
double AveragingSync::lr_of_round(const comm::Group& ranks, bool counts) const {
  if (options_.outer != AveragingOptions::Outer::slowmo) {
    return 0;
  }
  at::Tensor sums =
      torch::tensor({counts ? lr_sum_ : 0.0, counts ? static_cast<double>(taken_) : 0.0}, torch::kFloat64);
  ranks.all_reduce(sums, comm::ReduceOp::sum, "learning rate of the round").wait();
  return sums[1].item<double>() > 0 ? sums[0].item<double>() / sums[1].item<double>() : 0;
}

void AveragingSync::finish_round() {
  using Values = bucket::SteppedValues;
  const torch::NoGradGuard no_grad;
  const double lr = lr_of_round(group());
  const auto access =
      options_.states == AveragingOptions::States::maintain ? Values::Access::write : Values::Access::write_all;
  for (int64_t b = 0; b < std::ssize(buffers_); ++b) {
    for (int64_t k = 0; k < std::ssize(buffers_[b]->layout().buckets()); ++k) {
      keep_start(b, k); // no step of the round was taken
      values_->with_values(b, k, access, [&](const Values::Values& values) {
        average(b, k, values.parameters, lr);
        treat_states(values);
      });
    }
  }
  if (options_.states == AveragingOptions::States::reset) {
    values_->set_steps(0);
  }
  begin_round();
}

void AveragingSync::begin_round() {
  outer_.begin_round();
  lr_sum_ = 0;
  taken_ = 0;
}

void AveragingSync::average(int64_t buffer, int64_t bucket, const at::Tensor& parameters, double lr) {
  const std::string what = concat("parameters, bucket ", bucket);
  const auto ranks = static_cast<double>(group().size());
  at::Tensor all = parameters;
  if (!has_outer()) {
    group().all_reduce(all, comm::ReduceOp::sum, what).wait();
    all.div_(ranks);
    return;
  }
  at::Tensor part = outer_.part_of(all);
  group().reduce_scatter(part, all, comm::ReduceOp::sum, what).wait();
  outer_.step(buffer, bucket, part.div_(ranks), lr);
  group().all_gather(all, part, what).wait();
}

void AveragingSync::treat_states(const bucket::SteppedValues::Values& values) {
  for (size_t i = 0; i < values.states.size(); ++i) {
    at::Tensor state = values.states[i];
    if (options_.states == AveragingOptions::States::reset) {
      state.fill_(values.initial[i]);
    } else if (group().size() > 1) {
      at::Tensor sum = state.to(torch::kFloat32); // the state itself if it is fp32
      group().all_reduce(sum, comm::ReduceOp::sum, "optimizer states").wait();
      sum.div_(group().size());
      if (!sum.is_same(state)) {
        state.copy_(sum);
      }
    }
  }
}

nlohmann::json AveragingSync::state() const {
  return {{kOuter, AveragingOptions::name(options_.outer)}};
}

void AveragingSync::load_state(const nlohmann::json& state, int64_t steps) {
  steps_ = steps;
  equal_ = true;
  lr_sum_ = 0;
  taken_ = 0;
  if (is_own(state)) {
    outer_.begin_round(); // its momentum is loaded next
  } else {
    if (has_outer() && state.is_object() && group().rank() == 0) {
      log::warning("the outer optimizer begins without momentum: the checkpoint's is \"", state.value(kOuter, ""),
                   "\", this run's is \"", AveragingOptions::name(options_.outer), '"');
    }
    outer_.reset();
  }
}

bool AveragingSync::is_own(const nlohmann::json& state) const {
  return state.is_object() && state.value(kOuter, "") == AveragingOptions::name(options_.outer);
}

void AveragingSync::for_each_state(const nlohmann::json& state, const Visit& visit) {
  if (has_outer() && is_own(state)) {
    outer_.for_each_state(visit);
  }
}

} // namespace trireme::parallel
