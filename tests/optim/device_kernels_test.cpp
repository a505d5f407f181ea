// Optimizers find their kernels by the device that the shard is on.
#include <trireme/optim/aten_kernels.h>
#include <trireme/optim/shard_check.h>

#include <trireme/base/error.h>

#include <ATen/ATen.h>

#include <gmock/gmock.h>

#include <cmath>

namespace trireme::optim {
namespace {

using testing::HasSubstr;

ShardStep shard_on(at::DeviceType device, int64_t states) {
  const at::Tensor empty = at::empty({0}, at::TensorOptions(at::kFloat).device(device));
  ShardStep shard;
  shard.param = empty;
  shard.grad = empty;
  shard.states.assign(states, empty);
  return shard;
}

int calls = 0;

TEST(DeviceKernelsTest, ADeviceBringsItsOwn) {
  const auto adam = make_optimizer({});
  EXPECT_EQ(&kernels_for(shard_on(at::kMeta, 0).grad), &kAtenKernels);
  EXPECT_EQ(&kernels_for(shard_on(at::kCPU, 0).grad), &kCpuKernels);
  DeviceKernels counting{};
  counting.adam = [](const kernels::AdamArgs&, std::span<const Segment>, at::Device device) {
    calls += device.is_meta() ? 1 : 100;
  };
  counting.add_squared_norm = [](const void*, kernels::Element, int64_t, double*, at::Device device) {
    calls += device.is_meta() ? 10 : 100;
  };
  register_kernels(at::kMeta, counting);
  adam->step(shard_on(at::kMeta, 2));
  EXPECT_EQ(calls, 1);
  const at::Tensor grad = shard_on(at::kMeta, 0).grad;
  kernels_for(grad).add_squared_norm(nullptr, kernels::Element::f32, 0, nullptr, grad.device());
  EXPECT_EQ(calls, 11);
  adam->step(shard_on(at::kCPU, 2));
  EXPECT_EQ(calls, 11);
}

TEST(DeviceKernelsTest, AShardIsOnOneDevice) {
  ShardStep shard = shard_on(at::kCPU, 2);
  shard.grad = shard_on(at::kMeta, 0).grad;
  try {
    make_optimizer({})->step(shard);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("adamw: grad must be a contiguous fp32 or bf16 or fp16 array [n] on cpu, got Float [0] on meta"));
  }
}

constexpr int64_t kCount = 1003;
const std::vector<Segment> kAll = {{0, kCount}};

/// Arrays of a shard, the same in each copy of it.
struct Arrays {
  explicit Arrays(at::ScalarType state = at::kFloat, at::ScalarType grad_type = at::kFloat,
                  std::optional<at::ScalarType> copy_type = std::nullopt) {
    at::manual_seed(5);
    param = at::randn({kCount});
    grad = at::randn({kCount}).to(grad_type);
    for (at::Tensor& s : states) {
      s = at::rand({kCount}).add_(0.1).to(state);
    }
    if (copy_type) {
      copy = at::full({kCount}, 7, *copy_type);
    }
  }
  template <class Args>
  Args args(uint32_t seed = kernels::kToNearest) const {
    Args args;
    args.param = param.mutable_data_ptr<float>();
    args.grad = grad.const_data_ptr();
    args.grad_type = element_of(grad.scalar_type());
    if (copy.defined()) {
      args.param_copy = copy.mutable_data_ptr();
      args.copy_type = element_of(copy.scalar_type());
    }
    args.grad_scale = 0.37F;
    if (factor.defined()) {
      args.grad_scale = 1e9F;
      args.device_grad_scale = factor.const_data_ptr<float>();
    }
    args.seed = seed;
    return args;
  }
  kernels::StateArray state(int i) const {
    return {states[i].mutable_data_ptr(), element_of(states[i].scalar_type()), nullptr};
  }

  at::Tensor param, grad, copy;
  at::Tensor states[3];
  at::Tensor factor; // undefined: the host has it
  bool skips() const { return factor.defined() && std::isnan(factor.item<float>()); }
};

/// In units of the last place of fp32 (`bits` 24) or bf16 (8) at the size of each element; what is below `least` counts
/// as that.
double ulps(const at::Tensor& a, const at::Tensor& b, int bits = 24, double least = 1) {
  const at::Tensor x = a.to(at::kDouble);
  const at::Tensor y = b.to(at::kDouble);
  const at::Tensor unit = at::exp2(y.abs().clamp_min(least).log2().floor() - (bits - 1));
  return (x - y).abs().div(unit).max().item<double>();
}

/// With NaN for a factor in memory nothing changes.
template <class Step>
void expect_skipped(const std::string& what, const DeviceKernels& kernels, Arrays arrays, const Step& step) {
  const Arrays before(arrays.states[0].scalar_type(), arrays.grad.scalar_type(),
                      arrays.copy.defined() ? std::optional(arrays.copy.scalar_type()) : std::nullopt);
  arrays.factor = at::full({1}, std::nanf(""));
  step(kernels, arrays);
  EXPECT_TRUE(arrays.param.equal(before.param)) << what;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(arrays.states[i].equal(before.states[i])) << what << ", state " << i;
  }
  if (arrays.copy.defined()) {
    EXPECT_TRUE(arrays.copy.equal(before.copy)) << what;
  }
}

/// Calls step(kernels, arrays) for both tables and compares what they leave.
template <class Step>
void compare(const char* name, const Step& step) {
  for (const at::ScalarType state : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType grad : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const std::optional<at::ScalarType> copy :
           {std::optional<at::ScalarType>(), std::optional(at::kBFloat16), std::optional(at::kHalf)}) {
        const Arrays ours(state, grad, copy);
        Arrays aten(state, grad, copy);
        step(kCpuKernels, ours);
        if (copy) {
          aten.factor = at::full({1}, 0.37F);
        }
        step(kAtenKernels, aten);
        const std::string what = concat(name, ", states ", state, ", gradients ", grad);
        EXPECT_FALSE(ours.param.equal(Arrays().param)) << what << ": nothing was stepped";
        EXPECT_LE(ulps(aten.param, ours.param), 4) << what;
        for (int i = 0; i < 3; ++i) {
          EXPECT_LE(ulps(aten.states[i], ours.states[i], state == at::kFloat ? 24 : 8, 0.25),
                    state == at::kFloat ? 4 : 1)
              << what << ", state " << i;
        }
        if (copy) {
          EXPECT_TRUE(aten.copy.equal(aten.param.to(*copy))) << what;
          EXPECT_TRUE(ours.copy.equal(ours.param.to(*copy))) << what;
        }
        for (const DeviceKernels* kernels : {&kCpuKernels, &kAtenKernels}) {
          expect_skipped(what + ", skipped", *kernels, Arrays(state, grad, copy), step);
        }
      }
    }
  }
}

TEST(AtenKernelsTest, StepsAreThoseOfTheCpuButForTheirLastBits) {
  for (const auto& [weight_decay, param_scale] :
       {std::pair(0.0F, 0.97F), std::pair(0.1F, 1.0F), std::pair(0.1F, 0.97F)}) { // the first two fused
    compare("adam", [weight_decay, param_scale](const DeviceKernels& kernels, const Arrays& arrays) {
      auto args = arrays.args<kernels::AdamArgs>();
      args.exp_avg = arrays.state(0);
      args.exp_avg_sq = arrays.state(1);
      args.weight_decay = weight_decay;
      args.param_scale = param_scale;
      args.one_minus_beta1 = 0.1F;
      args.beta2 = 0.95F;
      args.one_minus_beta2 = 0.05F;
      args.step_size = 0.3F;
      args.root_scale = 1.7F;
      args.eps = 1e-3F;
      kernels.adam(args, kAll, at::kCPU);
    });
  }
  for (const int kind : {0, 1, 2, 3}) { // plain, momentum, Nesterov, the first step
    compare("sgd", [=](const DeviceKernels& kernels, const Arrays& arrays) {
      auto args = arrays.args<kernels::SgdArgs>();
      if (kind > 0) {
        args.momentum_buffer = arrays.state(0);
      }
      args.nesterov = kind == 2;
      args.first = kind == 3;
      args.weight_decay = 0.1F;
      args.lr = 0.3F;
      args.momentum = 0.9F;
      args.one_minus_dampening = 0.8F;
      kernels.sgd(args, kAll, at::kCPU);
    });
  }
  compare("lion", [](const DeviceKernels& kernels, const Arrays& arrays) {
    auto args = arrays.args<kernels::LionArgs>();
    args.exp_avg = arrays.state(0);
    args.param_scale = 0.97F;
    args.lr = 0.3F;
    args.one_minus_beta1 = 0.4F;
    args.one_minus_beta2 = 0.1F;
    kernels.lion(args, kAll, at::kCPU);
  });
  compare("adagrad", [](const DeviceKernels& kernels, const Arrays& arrays) {
    auto args = arrays.args<kernels::AdagradArgs>();
    args.sum = arrays.state(0);
    args.weight_decay = 0.1F;
    args.lr = 0.3F;
    args.eps = 1e-3F;
    kernels.adagrad(args, kAll, at::kCPU);
  });
}

TEST(AtenKernelsTest, RmspropIsThatOfTheCpuButForItsLastBits) {
  for (const bool centered : {false, true}) {
    for (const bool momentum : {false, true}) {
      compare("rmsprop", [=](const DeviceKernels& kernels, const Arrays& arrays) {
        if (centered && !arrays.skips()) {
          arrays.states[0].add_(2); // above grad_avg^2
        }
        auto args = arrays.args<kernels::RmspropArgs>();
        args.square_avg = arrays.state(0);
        if (centered) {
          args.grad_avg = arrays.state(1);
        }
        if (momentum) {
          args.momentum_buffer = arrays.state(2);
        }
        args.weight_decay = 0.1F;
        args.lr = 0.1F;
        args.alpha = 0.9F;
        args.one_minus_alpha = 0.1F;
        args.momentum = 0.8F;
        args.eps = 1e-3F;
        kernels.rmsprop(args, kAll, at::kCPU);
      });
    }
  }
}

/// The gradient becomes the state as it is, so both tables round the same numbers.
TEST(AtenKernelsTest, StatesInBf16AreRoundedWithTheBitsOfTheCpu) {
  for (const uint32_t seed : {1U, 12345U, 0xfffffff0U}) {
    const auto stepped = [&](const DeviceKernels& kernels) {
      const Arrays arrays(at::kBFloat16);
      arrays.grad[0] = std::nanf("");
      arrays.grad[2] = 1e-40F;
      auto args = arrays.args<kernels::SgdArgs>(seed);
      args.momentum_buffer = arrays.state(0);
      args.first = true;
      kernels.sgd(args, kAll, at::kCPU);
      return arrays.states[0].view(at::kShort);
    };
    EXPECT_TRUE(stepped(kAtenKernels).equal(stepped(kCpuKernels))) << seed;
    EXPECT_FALSE(stepped(kAtenKernels).equal(Arrays().grad.mul(0.37F).to(at::kBFloat16).view(at::kShort)))
        << "not to nearest";
  }
}

/// Two parameters of the shard, numbers 2 and 0; the gap between them stays as it is.
TEST(AtenKernelsTest, LambIsThatOfTheCpuButForItsLastBits) {
  const std::vector<Segment> segments = {{0, 400, 2}, {405, kCount, 0}};
  struct Limits {
    double min, max;
  };
  for (const Limits limits : {Limits{1e-9, 1e9}, Limits{5, 9}, Limits{0.01, 0.02}}) {
    for (const bool inside_root : {false, true}) {
      compare("lamb", [&](const DeviceKernels& kernels, const Arrays& arrays) {
        auto args = arrays.args<kernels::LambArgs>();
        args.exp_avg = arrays.state(0);
        args.exp_avg_sq = arrays.state(1);
        args.weight_decay = 0.1F;
        args.one_minus_beta1 = 0.1F;
        args.beta2 = 0.95F;
        args.one_minus_beta2 = 0.05F;
        args.eps = 1e-3F;
        args.eps_inside_root = inside_root;
        const at::Tensor sums = at::zeros({6}, at::kDouble);
        const double params = arrays.param.slice(0, 0, 400).to(at::kDouble).square().sum().item<double>();
        kernels.lamb_moments(args, segments, sums.mutable_data_ptr<double>(), at::kCPU);
        EXPECT_NEAR(sums[4].item<double>(), arrays.skips() ? 0 : params, 1e-12 * params);
        EXPECT_EQ(sums[2].item<double>(), 0);
        EXPECT_EQ(sums[1].item<double>() > 0, !arrays.skips());
        const at::Tensor gap = arrays.param.slice(0, 400, 405).clone();
        kernels.lamb_apply(args, segments, sums.const_data_ptr<double>(), {0.1, limits.min, limits.max}, at::kCPU);
        EXPECT_TRUE(gap.equal(arrays.param.slice(0, 400, 405)));
        if (arrays.copy.defined()) {
          arrays.copy.slice(0, 400, 405)
              .copy_(arrays.skips() ? at::full({5}, 7) : gap); // compare() asks for the copy of all of it
        }
      });
    }
  }
  const Arrays zero;
  zero.param.zero_();
  auto args = zero.args<kernels::LambArgs>();
  args.exp_avg = zero.state(0);
  args.exp_avg_sq = zero.state(1);
  const at::Tensor sums = at::zeros({6}, at::kDouble);
  kAtenKernels.lamb_apply(args, segments, sums.const_data_ptr<double>(), {0.5, 0.01, 0.02}, at::kCPU);
  const at::Tensor expected = zero.states[0].div(zero.states[1].sqrt()).mul(-0.5);
  EXPECT_LE(ulps(zero.param.slice(0, 0, 400), expected.slice(0, 0, 400)), 4) << "a norm of 0: the ratio is 1";
}

TEST(AtenKernelsTest, NormsAreAddedInDouble) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = Arrays(at::kFloat, type).grad;
    const at::Tensor sum = at::full({2}, 3.0, at::kDouble);
    kAtenKernels.add_squared_norm(x.const_data_ptr(), element_of(type), kCount, sum.mutable_data_ptr<double>() + 1,
                                  at::kCPU);
    const double expected = 3 + squared_norm(x);
    EXPECT_NEAR(sum[1].item<double>(), expected, 1e-13 * expected);
    EXPECT_EQ(sum[0].item<double>(), 3);
  }
}

/// Lion's sign() hides it otherwise, and the parameter is not trained any more.
TEST(AtenKernelsTest, NanGetsThroughLion) {
  for (const DeviceKernels* kernels : {&kCpuKernels, &kAtenKernels}) {
    const Arrays arrays;
    arrays.grad[7] = std::nanf("");
    auto args = arrays.args<kernels::LionArgs>();
    args.exp_avg = arrays.state(0);
    args.lr = 0.3F;
    kernels->lion(args, kAll, at::kCPU);
    EXPECT_TRUE(std::isnan(arrays.param[7].item<float>()));
    EXPECT_FALSE(std::isnan(arrays.param[6].item<float>()));
  }
}

/// Longer than one of the pieces that temporary arrays are cut to.
TEST(AtenKernelsTest, LongArraysAreSteppedInPieces) {
  constexpr int64_t kLong = (int64_t{1} << 22) + 777;
  const auto stepped = [](const DeviceKernels& kernels) {
    at::manual_seed(6);
    const at::Tensor param = at::randn({kLong});
    const at::Tensor grad = at::randn({kLong});
    kernels::SgdArgs args;
    args.param = param.mutable_data_ptr<float>();
    args.grad = grad.const_data_ptr();
    args.lr = 0.5F;
    kernels.sgd(args, std::vector<Segment>{{0, kLong}}, at::kCPU);
    at::Tensor sum = at::zeros({1}, at::kDouble);
    kernels.add_squared_norm(grad.const_data_ptr(), kernels::Element::f32, kLong, sum.mutable_data_ptr<double>(),
                             at::kCPU);
    return std::pair(param, sum.item<double>());
  };
  const auto [aten, aten_norm] = stepped(kAtenKernels);
  const auto [ours, our_norm] = stepped(kCpuKernels);
  EXPECT_LE(ulps(aten, ours), 1);
  EXPECT_NEAR(aten_norm, our_norm, 1e-12 * our_norm);
}

TEST(AtenKernelsTest, RefusesStatesOf8BitsByName) {
  const Arrays arrays;
  const at::Tensor codes = at::zeros({kCount}, at::kByte);
  auto args = arrays.args<kernels::LionArgs>();
  args.exp_avg = {codes.mutable_data_ptr(), kernels::Element::u8, nullptr};
  try {
    kAtenKernels.lion(args, kAll, at::kCPU);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("8-bit optimizer states need Trireme's own kernels"));
    EXPECT_THAT(error.what(), HasSubstr("\"state_dtype\": \"bf16\""));
  }
  EXPECT_THROW(kAtenKernels.decode_states(args.exp_avg, true, kCount, arrays.param.mutable_data_ptr<float>(), at::kCPU),
               Error);
}

} // namespace
} // namespace trireme::optim
