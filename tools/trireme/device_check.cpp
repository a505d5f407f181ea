#include "device_check.h"

#include <trireme/base/error.h>
#include <trireme/device/host_scalars.h>
#include <trireme/device/upload.h>
#include <trireme/optim/optimizer.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::tools {
namespace {

constexpr int64_t kNumel = 1000;
constexpr int kSteps = 3;
constexpr double kTolerance = 1e-5; // of the largest parameter, after kSteps

at::Tensor numbers(double factor, at::Device device) {
  return torch::sin(torch::arange(kNumel) * factor).to(at::kFloat).to(device);
}

// The parameters after some steps.
at::Tensor stepped(const optim::Optimizer& rule, at::Device device) {
  const std::vector<optim::Segment> segments = {{0, kNumel, 0}};
  optim::ShardStep shard;
  shard.param = numbers(0.3, device);
  for (const optim::StateInfo& state : rule.states()) {
    shard.states.push_back(torch::full({kNumel}, state.initial, shard.param.options()));
  }
  shard.segments = segments;
  shard.lr = 0.01;
  shard.weight_decay = 0.1;
  for (int step = 1; step <= kSteps; ++step) {
    shard.step = step;
    shard.grad = numbers(0.7 * step, device);
    if (rule.needs_norms()) {
      shard.norms = torch::zeros({2}, shard.param.options().dtype(at::kDouble));
      rule.prepare(shard, shard.norms);
    }
    rule.step(shard);
  }
  return shard.param.cpu();
}

DeviceFinding check_rule(const optim::OptimizerOptions& options, at::Device device) {
  const auto rule = optim::make_optimizer(options);
  const std::string what = concat(rule->name(), " on ", device);
  try {
    const double off = (stepped(*rule, device) - stepped(*rule, at::kCPU)).abs().max().item<double>();
    return {what, off <= kTolerance ? "as on the CPU" : concat("differs from the CPU by ", off), off <= kTolerance};
  } catch (const std::exception& error) {
    return {what, error.what(), false};
  }
}

DeviceFinding check_copies(at::Device device) {
  const std::string what = concat("copies to ", device);
  try {
    device::Uploader uploader(device);
    const at::Tensor batch = torch::arange(kNumel);
    const bool same = uploader.upload(batch).cpu().equal(batch);
    at::Tensor sum;
    device::add_scalar(sum, torch::full({}, 2.5, at::TensorOptions(device)));
    const bool right = same && device::read_scalars({sum}).front() == 2.5;
    return {what, right ? "arrive" : "arrive changed", right};
  } catch (const std::exception& error) {
    return {what, error.what(), false};
  }
}

} // namespace

std::vector<DeviceFinding> check_device(c10::Device device) {
  const torch::NoGradGuard no_grad;
  std::vector<DeviceFinding> found = {check_copies(device)};
  for (const auto& rule : std::vector<decltype(optim::OptimizerOptions::rule)>{optim::AdamOptions{}, optim::SgdOptions{.momentum = 0.9}, optim::LambOptions{}, optim::LionOptions{},
                                                                                 optim::AdagradOptions{}, optim::RmspropOptions{}}) {
    found.push_back(check_rule({.rule = rule}, device));
  }
  return found;
}

} // namespace trireme::tools
