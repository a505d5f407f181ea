#include <trireme/optim/optimizer.h>

#include <trireme/base/error.h>
#include <trireme/optim/parallel_blocks.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <limits>

namespace trireme::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// reference_optimizers.py's value(): in [-1, 1), exact in fp32.
float value(int64_t step, int64_t i) {
  const auto bits = static_cast<uint32_t>(static_cast<uint64_t>(step * 7919 + i * 104729 + 12345) * 2654435761u);
  return std::ldexp(static_cast<float>(bits >> 9) / 4194304.0f - 1.0f, -static_cast<int>(i % 10));
}

at::Tensor values(int64_t step, int64_t n) {
  at::Tensor tensor = at::empty({n});
  for (int64_t i = 0; i < n; ++i) {
    tensor.mutable_data_ptr<float>()[i] = value(step, i);
  }
  return tensor;
}

OptimizerOptions adam_options(bool decoupled = true) {
  OptimizerOptions options;
  options.adam.decoupled_weight_decay = decoupled;
  return options;
}

OptimizerOptions sgd_options(double momentum, bool nesterov = false) {
  OptimizerOptions options;
  options.kind = OptimizerOptions::Kind::sgd;
  options.sgd.momentum = momentum;
  options.sgd.nesterov = nesterov;
  return options;
}

ShardStep make_shard(const Optimizer& optimizer, int64_t n, double lr = 1e-3, double weight_decay = 0) {
  ShardStep shard;
  shard.param = values(0, n);
  shard.grad = values(1, n);
  for (size_t i = 0; i < optimizer.state_names().size(); ++i) {
    shard.states.push_back(at::zeros({n}));
  }
  shard.lr = lr;
  shard.weight_decay = weight_decay;
  return shard;
}

OptimizerOptions options_of(const std::string& name, const nlohmann::json& o) {
  OptimizerOptions options;
  if (name == "sgd") {
    options.kind = OptimizerOptions::Kind::sgd;
    options.sgd = {o.at("lr"), o.at("momentum"), o.at("dampening"), o.at("weight_decay"), o.at("nesterov")};
  } else {
    options.adam.beta1 = o.at("betas")[0];
    options.adam.beta2 = o.at("betas")[1];
    options.adam.eps = o.at("eps");
    options.adam.decoupled_weight_decay = name == "adamw";
  }
  return options;
}

std::vector<double> doubles(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), tensor.const_data_ptr<float>() + tensor.numel()};
}

double largest(const std::vector<double>& x) {
  double found = 0;
  for (double value : x) {
    found = std::max(found, std::abs(value));
  }
  return found;
}

/// The largest difference, in fp32 ulps of the largest element of `b`.
double ulps_apart(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] -= b.at(i);
  }
  return largest(a) / std::ldexp(1.0, std::ilogb(largest(b)) - 23);
}

// Both round in every step, not in the same places; measured: 1, 1 and 5 ulps after 1, 10 and 100 steps.
TEST(OptimizerTest, EqualsTorchFor100Steps) {
  std::ifstream file(TRIREME_SOURCE_DIR "/tests/optim/reference_optimizers.json");
  const auto recorded = nlohmann::json::parse(file);
  const int64_t n = recorded.at("n");
  ASSERT_EQ(recorded.at("cases").size(), 11u);
  for (const auto& c : recorded.at("cases")) {
    const std::string name = c.at("name");
    const auto& o = c.at("options");
    const auto optimizer = make_optimizer(options_of(name, o));
    EXPECT_EQ(optimizer->name(), name);
    ShardStep shard = make_shard(*optimizer, n, o.at("lr"), o.at("weight_decay"));
    for (const auto& after : c.at("after")) {
      const int64_t last = after.at("step");
      for (; shard.step <= last; ++shard.step) {
        shard.grad = values(shard.step, n);
        optimizer->step(shard);
      }
      const std::string where = concat(name, ' ', o.dump(), " after step ", last);
      const std::vector<double> theirs = after.at("param");
      const std::vector<double> exact = after.at("exact");
      EXPECT_LE(ulps_apart(doubles(shard.param), theirs), last == 1 ? 1 : last == 10 ? 2 : 8) << where;
      EXPECT_LE(ulps_apart(doubles(shard.param), exact), 1.5 * ulps_apart(theirs, exact) + 1) << where;
      for (size_t k = 0; k < optimizer->state_names().size(); ++k) {
        const std::string& state = optimizer->state_names()[k];
        EXPECT_LE(ulps_apart(doubles(shard.states[k]), after.at(state)), 3) << where << ' ' << state;
      }
    }
  }
}

TEST(OptimizerTest, BiasCorrectionMakesTheFirstAdamStepTheLearningRate) {
  OptimizerOptions uncorrected = adam_options();
  uncorrected.adam.bias_correction = false;
  // Uncorrected, m / sqrt(v) is 0.1 g / sqrt(0.001 g^2).
  for (const auto& [options, size] : {std::pair{adam_options(), 0.01}, std::pair{uncorrected, 0.01 * 0.1 / std::sqrt(0.001)}}) {
    const auto optimizer = make_optimizer(options);
    ShardStep shard = make_shard(*optimizer, 100, 0.01);
    shard.grad = values(1, 100).sign() * 0.25;
    const at::Tensor before = shard.param.clone();
    optimizer->step(shard);
    const at::Tensor change = before - shard.param;
    EXPECT_LE((change - size * shard.grad.sign()).abs().max().item<double>(), 2e-7);
  }
}

TEST(OptimizerTest, GradScaleEqualsScalingTheGradientFirst) {
  for (const auto& options : {adam_options(true), adam_options(false), sgd_options(0), sgd_options(0.9), sgd_options(0.9, true)}) {
    const auto optimizer = make_optimizer(options);
    ShardStep folded = make_shard(*optimizer, 1000, 0.01, 0.1);
    ShardStep first = make_shard(*optimizer, 1000, 0.01, 0.1);
    for (int64_t step = 1; step <= 3; ++step) {
      folded.step = first.step = step;
      folded.grad = values(step, 1000);
      folded.grad_scale = 0.3 / 1024;
      first.grad = values(step, 1000).mul_(static_cast<float>(0.3 / 1024));
      optimizer->step(folded);
      optimizer->step(first);
    }
    EXPECT_TRUE(at::equal(folded.param, first.param)) << optimizer->name();
  }
}

TEST(OptimizerTest, GradientIsNotWritten) {
  for (const auto& options : {adam_options(), sgd_options(0.9, true)}) {
    const auto optimizer = make_optimizer(options);
    ShardStep shard = make_shard(*optimizer, 100, 0.01, 0.1);
    shard.grad_scale = 0.5;
    optimizer->step(shard);
    EXPECT_TRUE(at::equal(shard.grad, values(1, 100)));
  }
}

TEST(OptimizerTest, BetasOfTheStepReplaceTheOptions) {
  OptimizerOptions other = adam_options();
  other.adam.beta1 = 0.8;
  other.adam.beta2 = 0.99;
  const auto optimizer = make_optimizer(adam_options());
  ShardStep overridden = make_shard(*optimizer, 100);
  ShardStep plain = make_shard(*optimizer, 100);
  overridden.step = plain.step = 7;
  overridden.betas = Betas{0.8, 0.99};
  optimizer->step(overridden);
  make_optimizer(other)->step(plain);
  EXPECT_TRUE(at::equal(overridden.param, plain.param));
  EXPECT_TRUE(at::equal(overridden.states[1], plain.states[1]));
}

/// Runs f with this many threads and puts the number back.
template <class F>
auto with_threads(int threads, const F& f) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  auto result = f();
  at::set_num_threads(before);
  return result;
}

TEST(OptimizerTest, NumberOfThreadsAndCutsChangeNoBit) {
  const int64_t n = 5 * kBlock + 77;
  for (const auto& options : {adam_options(), sgd_options(0.9)}) {
    const auto optimizer = make_optimizer(options);
    const auto stepped = [&] {
      ShardStep shard = make_shard(*optimizer, n, 0.01, 0.1);
      optimizer->step(shard);
      return shard.param;
    };
    const at::Tensor one = with_threads(1, stepped);
    for (int threads : {2, 3, 4}) {
      EXPECT_TRUE(at::equal(with_threads(threads, stepped), one)) << threads;
    }
    // Two shards of unequal length, the second unaligned, as another number of ranks would cut it.
    ShardStep whole = make_shard(*optimizer, n, 0.01, 0.1);
    for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, 12345}, {12345, n}}) {
      ShardStep part = whole;
      part.param = whole.param.slice(0, begin, end);
      part.grad = whole.grad.slice(0, begin, end);
      for (auto& state : part.states) {
        state = state.slice(0, begin, end);
      }
      optimizer->step(part);
    }
    EXPECT_TRUE(at::equal(whole.param, one)) << optimizer->name();
  }
}

TEST(OptimizerTest, EmptyShardIsFine) {
  const auto optimizer = make_optimizer(adam_options());
  ShardStep shard = make_shard(*optimizer, 0);
  optimizer->step(shard);
  EXPECT_EQ(squared_norm(shard.grad), 0.0);
}

TEST(OptimizerTest, NamesStates) {
  EXPECT_THAT(make_optimizer(adam_options())->state_names(), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_STREQ(make_optimizer(adam_options(false))->name(), "adam");
  EXPECT_THAT(make_optimizer(sgd_options(0.5))->state_names(), ElementsAre("momentum_buffer"));
  EXPECT_THAT(make_optimizer(sgd_options(0))->state_names(), IsEmpty());
}

TEST(OptimizerTest, NamesTheWrongTensor) {
  const auto optimizer = make_optimizer(adam_options());
  const auto message = [&](auto change) -> std::string {
    ShardStep shard = make_shard(*optimizer, 10);
    change(shard);
    const at::Tensor before = shard.param.defined() ? shard.param.clone() : at::Tensor();
    try {
      optimizer->step(shard);
    } catch (const Error& error) {
      if (before.defined()) {
        EXPECT_TRUE(at::equal(before, shard.param));
      }
      return error.what();
    }
    return "stepped";
  };
  EXPECT_THAT(message([](auto& s) { s.grad = at::zeros({11}); }), HasSubstr("adamw: grad has 11 elements, the parameters have 10"));
  EXPECT_THAT(message([](auto& s) { s.grad = at::Tensor(); }), HasSubstr("adamw: grad is an undefined tensor"));
  EXPECT_THAT(message([](auto& s) { s.param = at::zeros({10}, at::kDouble); }), HasSubstr("adamw: param must be"));
  EXPECT_THAT(message([](auto& s) { s.param = at::zeros({2, 5}); }), HasSubstr("adamw: param must be"));
  EXPECT_THAT(message([](auto& s) { s.states[1] = at::zeros({20}).slice(0, 0, 20, 2); }), HasSubstr("adamw: exp_avg_sq must be"));
  EXPECT_THAT(message([](auto& s) { s.states.pop_back(); }), HasSubstr("needs 2 states, got 1"));
  EXPECT_THAT(message([](auto& s) { s.step = 0; }), HasSubstr("steps count from 1, got 0"));
}

TEST(OptimizerTest, NamesTheImpossibleOption) {
  const auto message = [](OptimizerOptions options) -> std::string {
    try {
      make_optimizer(options);
    } catch (const InputError& error) {
      return error.what();
    }
    return "made";
  };
  OptimizerOptions options = adam_options();
  options.adam.beta2 = 1.0;
  EXPECT_THAT(message(options), HasSubstr("adamw: betas[1] must be in [0, 1), got 1"));
  options = adam_options(false);
  options.adam.eps = -1;
  EXPECT_THAT(message(options), HasSubstr("adam: eps must be at least 0, got -1"));
  options = adam_options();
  options.adam.lr = std::nan("");
  EXPECT_THAT(message(options), HasSubstr("adamw: lr"));
  EXPECT_THAT(message(sgd_options(-0.5)), HasSubstr("sgd: momentum must be at least 0, got -0.5"));
  EXPECT_THAT(message(sgd_options(0, true)), HasSubstr("nesterov needs momentum"));
}

TEST(SquaredNormTest, IsTheSumAndTheSameForAnyNumberOfThreads) {
  const at::Tensor grad = values(3, 6 * kBlock + 12345);
  const double one = with_threads(1, [&] { return squared_norm(grad); });
  for (int threads : {2, 3, 4, 7}) {
    EXPECT_EQ(with_threads(threads, [&] { return squared_norm(grad); }), one);
  }
  const double exact = grad.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(one, exact, 1e-14 * exact);
}

TEST(SquaredNormTest, DoesNotOverflowFloatAndShowsInfinity) {
  EXPECT_DOUBLE_EQ(squared_norm(at::full({4}, 1e30f)), 4 * std::pow(static_cast<double>(1e30f), 2));
  at::Tensor grad = at::zeros({100});
  grad[77] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(squared_norm(grad)));
  grad[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(squared_norm(grad)));
  EXPECT_THROW(squared_norm(at::zeros({3}, at::kDouble)), Error);
}

} // namespace
} // namespace trireme::optim
