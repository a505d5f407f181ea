// Adam whose second moment is frozen and whose first has been agreed on: parameters change and nothing else.
#include <trireme/optim/adam.h>
#include <trireme/optim/aten_kernels.h>
#include <trireme/optim/device_kernels.h>

#include <torch/utils.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace trireme::optim {
namespace {

void expect_only_parameters_change(const AdamOptions& options, at::ScalarType gradients, bool has_copy) {
  constexpr int64_t kCount = 1037, kStep = 7, kFrozen = 3;
  torch::manual_seed(1);
  const Adam adam(options);
  ShardStep shard;
  shard.param = torch::randn({kCount});
  shard.grad = torch::randn({kCount}).mul(torch::logspace(-6, 6, kCount)).to(gradients);
  shard.states = {torch::randn({kCount}), torch::rand({kCount}) + 1e-4};
  if (has_copy) {
    shard.param_copy = torch::zeros({kCount}, torch::kBFloat16);
  }
  shard.lr = 0.01;
  shard.weight_decay = options.weight_decay;
  shard.step = kStep;
  shard.held = {.first = true, .second = true, .second_steps = kFrozen};
  const at::Tensor before = shard.param.clone(), first = shard.states[0].clone(), second = shard.states[1].clone();
  adam.step(shard);
  EXPECT_TRUE(shard.states[0].equal(first));
  EXPECT_TRUE(shard.states[1].equal(second));
  const double correction1 = options.bias_correction ? 1 - std::pow(options.beta1, kStep) : 1;
  const double correction2 = options.bias_correction ? 1 - std::pow(options.beta2, kFrozen) : 1;
  const at::Tensor wanted = before * (1 - 0.01 * options.weight_decay) -
                            0.01 / correction1 * first / ((second / correction2).sqrt() + options.eps);
  EXPECT_TRUE(torch::allclose(shard.param, wanted, 1e-5, 1e-6)) << (shard.param - wanted).abs().max().item<double>();
  if (has_copy) {
    EXPECT_TRUE(shard.param_copy.equal(shard.param.to(torch::kBFloat16)));
  }
}

void expect_it_of_all() {
  for (const bool bias_correction : {true, false}) {
    const AdamOptions options{.weight_decay = 0.1, .bias_correction = bias_correction};
    expect_only_parameters_change(options, torch::kFloat32, false);
    expect_only_parameters_change(options, torch::kBFloat16, true);
  }
}

TEST(FrozenAdamTest, ChangesParametersOnly) {
  expect_it_of_all();
}

TEST(FrozenAdamTest, AlsoByAtensOperators) {
  register_kernels(at::kCPU, kAtenKernels);
  expect_it_of_all();
}

} // namespace
} // namespace trireme::optim
