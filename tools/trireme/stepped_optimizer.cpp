#include "stepped_optimizer.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace trireme::tools {
namespace {

using optim::StateType;

constexpr double kScaleBytes = 2.0 * 2 * sizeof(float) / optim::kStateBlock; // two states' scales are read and written
constexpr std::array kRules = {
    SteppedRule{"adam", optim::AdamOptions{.beta2 = 0.95}, false, StateType::fp32, 28},
    SteppedRule{"adam_bf16", optim::AdamOptions{.beta2 = 0.95}, true, StateType::fp32, 30},
    SteppedRule{"adam_bf16_states16", optim::AdamOptions{.beta2 = 0.95}, true, StateType::bf16, 22},
    SteppedRule{"adam_bf16_states8", optim::AdamOptions{.beta2 = 0.95}, true, StateType::int8, 18 + kScaleBytes},
    SteppedRule{"lamb", optim::LambOptions{}, false, StateType::fp32, 40},
    SteppedRule{"lion", optim::LionOptions{}, false, StateType::fp32, 20},
    SteppedRule{"adagrad", optim::AdagradOptions{}, false, StateType::fp32, 20},
    SteppedRule{"rmsprop", optim::RmspropOptions{}, false, StateType::fp32, 20},
    SteppedRule{"sgd", optim::SgdOptions{.momentum = 0.9}, false, StateType::fp32, 20},
};

constexpr int64_t kParameters = 16;

} // namespace

std::span<const SteppedRule> stepped_rules() {
  return kRules;
}

SteppedOptimizer::SteppedOptimizer(const SteppedRule& rule, int64_t n, const Make& make) : rule_(rule) {
  optimizer_ = optim::make_optimizer({.rule = rule.rule, .state_type = rule.state_type});
  shard_.param = make(n, at::kFloat).fill_(0.02F);
  shard_.grad = make(n, rule.mixed ? at::kBFloat16 : at::kFloat).fill_(0.01F);
  if (rule.mixed) {
    shard_.param_copy = make(n, at::kBFloat16).zero_();
  }
  const at::TensorOptions there = shard_.param.options();
  for (size_t i = 0; i < optimizer_->states().size(); ++i) {
    shard_.states.push_back(make(n, optim::scalar_type(rule.state_type)).zero_());
    if (rule.state_type == StateType::int8) {
      shard_.scales.push_back(at::zeros({(n + optim::kStateBlock - 1) / optim::kStateBlock}, there));
    }
  }
  shard_.lr = 1e-3;
  shard_.weight_decay = 0.1;
  for (int64_t i = 0; i < kParameters; ++i) {
    segments_.push_back({n * i / kParameters, n * (i + 1) / kParameters, i});
  }
  shard_.segments = segments_;
  norms_ = at::zeros({2 * kParameters}, there.dtype(at::kDouble));
  shard_.norms = norms_;
  if (rule.mixed && !shard_.param.is_cpu()) {
    sum_ = at::zeros({1}, there.dtype(at::kDouble));
    shard_.device_grad_scale = at::ones({1}, there);
  }
}

void SteppedOptimizer::step() {
  if (sum_.defined()) {
    sum_.zero_();
    optim::add_squared_norm(shard_.grad, sum_);
  } else if (rule_.mixed) {
    constexpr double kLossScale = 1;
    shard_.grad_scale =
        std::min(1.0, 1 / (std::sqrt(optim::squared_norm(shard_.grad)) / kLossScale + 1e-6)) / kLossScale;
  }
  if (optimizer_->needs_norms()) {
    norms_.zero_();
    optimizer_->prepare(shard_, norms_);
  }
  optimizer_->step(shard_);
  ++shard_.step;
}

} // namespace trireme::tools
