#include "device_check.h"

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/device/host_scalars.h>
#include <trireme/device/upload.h>
#include <trireme/models/small_step.h>
#include <trireme/optim/aten_kernels.h>

#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <variant>

namespace trireme::tools {
namespace {

constexpr int64_t kNumel = 1000;
constexpr int64_t kNormNumel = 3 * optim::kBlock + 17;
constexpr int kSteps = 3;
constexpr double kLr = 0.01;
constexpr double kTolerance = 1e-5; // of the parameter with the largest error, after kSteps
// Rounding of bf16 and 8-bit states uses random bits from the number itself. Of two numbers one ulp apart, one may be
// rounded up and the other down. Averaged over all parameters that is a small part of a step; a missing step is more
// than kLr.
constexpr double kRoundedTolerance = kLr / 50;

/// The types with which an optimizer steps.
struct Types {
  const char* name;
  at::ScalarType grad; ///< and of the copy of the parameters, if it is not fp32
  optim::StateType states;
};

constexpr Types kTypes[] = {{"fp32", at::kFloat, optim::StateType::fp32},
                            {"bf16 with masters", at::kBFloat16, optim::StateType::fp32},
                            {"fp16 with masters", at::kHalf, optim::StateType::fp32},
                            {"states in bf16", at::kFloat, optim::StateType::bf16},
                            {"states in 8 bits", at::kBFloat16, optim::StateType::int8}};

at::Tensor numbers(double factor, at::Device device, int64_t numel = kNumel) {
  return torch::sin(torch::arange(numel) * factor).to(at::kFloat).to(device);
}

struct Stepped {
  at::Tensor param;
  at::Tensor copy; ///< undefined with gradients in fp32
};

// The parameters after some steps, copied to the CPU.
Stepped stepped(const optim::Optimizer& rule, at::ScalarType grad, at::Device device) {
  const std::vector<optim::Segment> segments = {{0, kNumel, 0}};
  optim::ShardStep shard;
  shard.param = numbers(0.3, device);
  if (grad != at::kFloat) {
    shard.param_copy = shard.param.to(grad);
  }
  for (const optim::StateInfo& state : rule.states()) {
    const at::Tensor values = torch::full({kNumel}, state.initial, shard.param.options());
    shard.states.push_back(values.to(optim::scalar_type(rule.state_type())));
    if (rule.state_type() == optim::StateType::int8) {
      shard.scales.push_back(torch::empty({(kNumel + optim::kStateBlock - 1) / optim::kStateBlock}, values.options()));
      optim::encode_states(values, shard.states.back(), shard.scales.back(), state.is_signed);
    }
  }
  shard.segments = segments;
  shard.lr = kLr;
  shard.weight_decay = 0.1;
  for (int step = 1; step <= kSteps; ++step) {
    shard.step = step;
    shard.grad = numbers(0.7 * step, device).to(grad);
    if (rule.needs_norms()) {
      shard.norms = torch::zeros({2}, shard.param.options().dtype(at::kDouble));
      rule.prepare(shard, shard.norms);
    }
    rule.step(shard);
  }
  return {shard.param.cpu(), shard.param_copy.defined() ? shard.param_copy.cpu() : at::Tensor()};
}

/// Describes the first difference; "" if there is none.
std::string difference(const optim::Optimizer& rule, at::ScalarType grad, at::Device device) {
  const Stepped there = stepped(rule, grad, device);
  const at::Tensor off = (there.param - stepped(rule, grad, at::kCPU).param).abs();
  const bool rounds = rule.state_type() != optim::StateType::fp32;
  const double found = (rounds ? off.mean() : off.max()).item<double>();
  if (!(found <= (rounds ? kRoundedTolerance : kTolerance))) {
    return concat("differs from the CPU by ", found, rounds ? " on average" : "");
  }
  return there.copy.defined() && !there.copy.equal(there.param.to(grad))
             ? "the copy of the parameters differs from the rounded masters"
             : "";
}

DeviceFinding check_rule(const decltype(optim::OptimizerOptions::rule)& options, at::Device device) {
  const std::string what = concat(optim::make_optimizer({.rule = options})->name(), " on ", device);
  const char* now = "";
  std::vector<std::string> good;
  try {
    for (const Types& types : kTypes) {
      now = types.name;
      const bool aten = &optim::kernels_for(torch::empty({0}, at::TensorOptions(device))) == &optim::kAtenKernels;
      if (types.states == optim::StateType::int8 && (aten || std::holds_alternative<optim::LambOptions>(options))) {
        continue; // not supported on the device
      }
      const auto rule = optim::make_optimizer({.rule = options, .state_type = types.states});
      if (const std::string wrong = difference(*rule, types.grad, device); !wrong.empty()) {
        return {what, concat(types.name, ": ", wrong), false};
      }
      good.emplace_back(types.name);
    }
    return {what, concat("as on the CPU: ", join(good, ", ")), true};
  } catch (const std::exception& error) {
    return {what, concat(now, ": ", error.what()), false};
  }
}

DeviceFinding check_norm(at::Device device) {
  const std::string what = concat("norm on ", device);
  try {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto norm_on = [&](at::Device on, bool infinite) {
        at::Tensor grad = numbers(0.3, at::kCPU, kNormNumel).to(type);
        if (infinite) {
          grad[kNormNumel - 1] = std::numeric_limits<float>::infinity();
        }
        const at::Tensor sum = torch::zeros({1}, at::TensorOptions(at::kDouble).device(on));
        optim::add_squared_norm(grad.to(on), sum);
        return sum.item<double>();
      };
      const double there = norm_on(device, false);
      const double here = norm_on(at::kCPU, false);
      if (!(std::abs(there - here) <= 1e-9 * here)) {
        return {what,
                concat("the squares of ", kNormNumel, " numbers of type ", type, " add up to ", there,
                       ", on the CPU to ", here),
                false};
      }
      if (std::isfinite(norm_on(device, true))) {
        return {what, concat("does not detect an infinite number of type ", type), false};
      }
    }
    return {what, "as on the CPU: fp32, bf16, fp16", true};
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

DeviceFinding check_bf16(c10::Device device) {
  try {
    const models::StepSeconds step = models::time_small_gpt(device);
    const auto milliseconds = [](double seconds) { return concat(std::lround(1e3 * seconds), " ms"); };
    const std::string where =
        device.is_cpu() ? concat(", with ", at::get_num_threads(), at::get_num_threads() == 1 ? " thread" : " threads")
                        : concat(" on ", device);
    return {"bf16",
            concat(step.bf16_is_faster() ? "faster than fp32" : "not faster than fp32", ": a small step takes ",
                   milliseconds(step.bf16), ", in fp32 ", milliseconds(step.fp32), where),
            true};
  } catch (const std::exception& error) {
    return {"bf16", concat("no small model can be trained on ", device, ": ", error.what()), false};
  }
}

std::vector<DeviceFinding> check_device(c10::Device device) {
  const torch::NoGradGuard no_grad;
  std::vector<DeviceFinding> found = {check_copies(device), check_norm(device)};
  for (const auto& rule : std::vector<decltype(optim::OptimizerOptions::rule)>{
           optim::AdamOptions{}, optim::SgdOptions{.momentum = 0.9}, optim::LambOptions{}, optim::LionOptions{},
           optim::AdagradOptions{}, optim::RmspropOptions{}}) {
    found.push_back(check_rule(rule, device));
  }
  return found;
}

} // namespace trireme::tools
