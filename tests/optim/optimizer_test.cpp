#include <tests/support/folders.h>
#include <trireme/optim/optimizer.h>

#include <trireme/base/error.h>
#include <trireme/optim/device_kernels.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>

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
  return {.rule = AdamOptions{.decoupled_weight_decay = decoupled}};
}

OptimizerOptions sgd_options(double momentum, bool nesterov = false) {
  return {.rule = SgdOptions{.momentum = momentum, .nesterov = nesterov}};
}

ShardStep make_shard(const Optimizer& optimizer, int64_t n, double lr = 1e-3, double weight_decay = 0) {
  ShardStep shard;
  shard.param = values(0, n);
  shard.grad = values(1, n);
  for (const StateInfo& state : optimizer.states()) {
    shard.states.push_back(at::full({n}, state.initial));
  }
  shard.lr = lr;
  shard.weight_decay = weight_decay;
  return shard;
}

OptimizerOptions options_of(const std::string& name, const nlohmann::json& o) {
  if (name == "sgd") {
    return {.rule =
                SgdOptions{o.at("lr"), o.at("momentum"), o.at("dampening"), o.at("weight_decay"), o.at("nesterov")}};
  }
  if (name == "lamb") {
    return {.rule = LambOptions{o.at("lr"), o.at("betas")[0], o.at("betas")[1], o.at("eps"), o.at("weight_decay"),
                                o.value("bias_correction", true), o.value("max_coeff", 10.0),
                                o.value("min_coeff", 0.01), o.value("eps_inside_sqrt", false)}};
  }
  if (name == "lion") {
    return {.rule = LionOptions{o.at("lr"), o.at("betas")[0], o.at("betas")[1], o.at("weight_decay")}};
  }
  if (name == "adagrad") {
    return {.rule = AdagradOptions{o.at("lr"), o.at("lr_decay"), o.at("eps"), o.at("weight_decay"),
                                   o.at("initial_accumulator_value")}};
  }
  if (name == "rmsprop") {
    return {.rule = RmspropOptions{o.at("lr"), o.at("alpha"), o.at("eps"), o.at("weight_decay"), o.at("momentum"),
                                   o.at("centered")}};
  }
  return {.rule = AdamOptions{.beta1 = o.at("betas")[0],
                              .beta2 = o.at("betas")[1],
                              .eps = o.at("eps"),
                              .decoupled_weight_decay = name == "adamw"}};
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

// As FlatOptimizer does it, with the two parameters that the reference has.
void step_whole(const Optimizer& optimizer, ShardStep& shard, int64_t split) {
  const std::vector<Segment> segments = {{0, split, 0}, {split, shard.param.numel(), 1}};
  const at::Tensor norms = at::zeros({4}, at::kDouble);
  shard.segments = segments;
  if (optimizer.needs_norms()) {
    optimizer.prepare(shard, norms);
    shard.norms = norms;
  }
  optimizer.step(shard);
  shard.segments = {};
  shard.norms = at::Tensor();
}

// Both round in every step, not in the same places. Measured after 1, 10 and 100 steps: AdamW 1, 1 and 5 ulps; RMSprop
// 1, 1, 3; LAMB and SGD 1, 1, 2; Adam, Adagrad and Lion 1. Moments in another formula (m + (1 - beta) (g - m)) are up
// to 6 apart.
TEST(OptimizerTest, EqualsTorchFor100Steps) {
  std::ifstream file(test::source_dir() + "/tests/optim/reference_optimizers.json");
  const auto recorded = nlohmann::json::parse(file);
  const int64_t n = recorded.at("n");
  std::map<std::string, double> param_ulps;
  ASSERT_EQ(recorded.at("cases").size(), 30u);
  for (const auto& c : recorded.at("cases")) {
    const std::string name = c.at("name");
    const auto& o = c.at("options");
    const std::string grad = c.at("grad");
    const at::ScalarType type = grad == "bfloat16" ? at::kBFloat16 : grad == "float16" ? at::kHalf : at::kFloat;
    const auto optimizer = make_optimizer(options_of(name, o));
    EXPECT_EQ(optimizer->name(), name);
    ShardStep shard = make_shard(*optimizer, n, o.at("lr"), o.at("weight_decay"));
    if (type != at::kFloat) {
      shard.param_copy = at::empty({n}, type);
    }
    for (const auto& after : c.at("after")) {
      const int64_t last = after.at("step");
      for (; shard.step <= last; ++shard.step) {
        shard.grad = values(shard.step, n).to(type);
        step_whole(*optimizer, shard, recorded.at("split"));
      }
      const std::string where = concat(name, ' ', grad, ' ', o.dump(), " after step ", last);
      const std::vector<double> theirs = after.at("param");
      const std::vector<double> exact = after.at("exact");
      const double apart = ulps_apart(doubles(shard.param), theirs);
      param_ulps[concat(name, ' ', last)] = std::max(param_ulps[concat(name, ' ', last)], apart);
      EXPECT_LE(apart, last == 1 ? 1 : last == 10 ? 2 : 8) << where;
      EXPECT_LE(ulps_apart(doubles(shard.param), exact), 1.5 * ulps_apart(theirs, exact) + 1) << where;
      for (size_t k = 0; k < optimizer->states().size(); ++k) {
        const std::string& state = optimizer->states()[k].name;
        const double state_apart = ulps_apart(doubles(shard.states[k]), after.at(state));
        EXPECT_LE(state_apart, name.starts_with("adam") || name == "sgd" ? 3 : 8) << where << ' ' << state;
      }
      if (shard.param_copy.defined()) {
        EXPECT_TRUE(at::equal(shard.param_copy, shard.param.to(type))) << where;
      }
    }
  }
  for (const auto& [what, ulps] : param_ulps) {
    RecordProperty(what, std::to_string(ulps));
  }
}

TEST(OptimizerTest, BiasCorrectionMakesTheFirstAdamStepTheLearningRate) {
  OptimizerOptions uncorrected = adam_options();
  std::get<AdamOptions>(uncorrected.rule).bias_correction = false;
  // Uncorrected, m / sqrt(v) is 0.1 g / sqrt(0.001 g^2).
  for (const auto& [options, size] :
       {std::pair{adam_options(), 0.01}, std::pair{uncorrected, 0.01 * 0.1 / std::sqrt(0.001)}}) {
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
  for (const OptimizerOptions& options : std::initializer_list<OptimizerOptions>{adam_options(true),
                                                                                 adam_options(false),
                                                                                 sgd_options(0),
                                                                                 sgd_options(0.9),
                                                                                 sgd_options(0.9, true),
                                                                                 {.rule = LionOptions{}},
                                                                                 {.rule = AdagradOptions{}},
                                                                                 {.rule = RmspropOptions{}},
                                                                                 {.rule = LambOptions{}}}) {
    const auto optimizer = make_optimizer(options);
    ShardStep folded = make_shard(*optimizer, 1000, 0.01, 0.1);
    ShardStep first = make_shard(*optimizer, 1000, 0.01, 0.1);
    for (int64_t step = 1; step <= 3; ++step) {
      folded.step = first.step = step;
      folded.grad = values(step, 1000);
      folded.grad_scale = 0.3 / 1024;
      first.grad = values(step, 1000).mul_(static_cast<float>(0.3 / 1024));
      step_whole(*optimizer, folded, 300);
      step_whole(*optimizer, first, 300);
    }
    EXPECT_TRUE(at::equal(folded.param, first.param)) << optimizer->name();
  }
}

TEST(OptimizerTest, GradientIsNotWritten) {
  for (const OptimizerOptions& options :
       std::initializer_list<OptimizerOptions>{adam_options(), sgd_options(0.9, true), {.rule = LambOptions{}}}) {
    const auto optimizer = make_optimizer(options);
    ShardStep shard = make_shard(*optimizer, 100, 0.01, 0.1);
    shard.grad_scale = 0.5;
    step_whole(*optimizer, shard, 30);
    EXPECT_TRUE(at::equal(shard.grad, values(1, 100)));
  }
}

TEST(OptimizerTest, BetasOfTheStepReplaceTheOptions) {
  OptimizerOptions other = adam_options();
  std::get<AdamOptions>(other.rule).beta1 = 0.8;
  std::get<AdamOptions>(other.rule).beta2 = 0.99;
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
  for (const OptimizerOptions& options : std::initializer_list<OptimizerOptions>{adam_options(),
                                                                                 sgd_options(0.9),
                                                                                 {.rule = LionOptions{}},
                                                                                 {.rule = AdagradOptions{}},
                                                                                 {.rule = RmspropOptions{}}}) {
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

TEST(OptimizerTest, NumberOfThreadsChangesNoBitOfLamb) {
  const auto optimizer = make_optimizer({.rule = LambOptions{}});
  const auto stepped = [&] {
    ShardStep shard = make_shard(*optimizer, 5 * kBlock + 77, 0.01, 0.1);
    step_whole(*optimizer, shard, 2 * kBlock + 5);
    return shard.param;
  };
  const at::Tensor one = with_threads(1, stepped);
  for (int threads : {2, 3, 4}) {
    EXPECT_TRUE(at::equal(with_threads(threads, stepped), one)) << threads;
  }
}

TEST(OptimizerTest, EmptyShardIsFine) {
  const auto optimizer = make_optimizer(adam_options());
  ShardStep shard = make_shard(*optimizer, 0);
  optimizer->step(shard);
  EXPECT_EQ(squared_norm(shard.grad), 0.0);
}

TEST(OptimizerTest, NamesStates) {
  const auto names = [](const OptimizerOptions& options) {
    std::vector<std::string> found;
    const auto optimizer = make_optimizer(options);
    for (const StateInfo& state : optimizer->states()) {
      found.push_back(state.name + (state.is_signed ? "" : ">0"));
    }
    return found;
  };
  EXPECT_THAT(names(adam_options()), ElementsAre("exp_avg", "exp_avg_sq>0"));
  EXPECT_STREQ(make_optimizer(adam_options(false))->name(), "adam");
  EXPECT_THAT(names(sgd_options(0.5)), ElementsAre("momentum_buffer"));
  EXPECT_THAT(names(sgd_options(0)), IsEmpty());
  EXPECT_THAT(names({.rule = LambOptions{}}), ElementsAre("exp_avg", "exp_avg_sq>0"));
  EXPECT_THAT(names({.rule = LionOptions{}}), ElementsAre("exp_avg"));
  EXPECT_THAT(names({.rule = AdagradOptions{}}), ElementsAre("sum>0"));
  OptimizerOptions options{.rule = RmspropOptions{}};
  EXPECT_THAT(names(options), ElementsAre("square_avg>0"));
  std::get<RmspropOptions>(options.rule).momentum = 0.5;
  EXPECT_THAT(names(options), ElementsAre("square_avg>0", "momentum_buffer"));
  std::get<RmspropOptions>(options.rule).centered = true;
  EXPECT_THAT(names(options), ElementsAre("square_avg>0", "grad_avg", "momentum_buffer"));
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
  EXPECT_THAT(message([](auto& s) { s.grad = at::zeros({11}); }),
              HasSubstr("adamw: grad has 11 elements, the parameters have 10"));
  EXPECT_THAT(message([](auto& s) { s.grad = at::Tensor(); }), HasSubstr("adamw: grad is an undefined tensor"));
  EXPECT_THAT(message([](auto& s) { s.param = at::zeros({10}, at::kDouble); }), HasSubstr("adamw: param must be"));
  EXPECT_THAT(message([](auto& s) { s.param = at::zeros({2, 5}); }), HasSubstr("adamw: param must be"));
  EXPECT_THAT(message([](auto& s) { s.states[1] = at::zeros({20}).slice(0, 0, 20, 2); }),
              HasSubstr("adamw: exp_avg_sq must be"));
  EXPECT_THAT(message([](auto& s) { s.states.pop_back(); }),
              HasSubstr("needs 2 states and 0 arrays of scales, got 1 and 0"));
  EXPECT_THAT(message([](auto& s) { s.grad = at::zeros({10}, at::kInt); }),
              HasSubstr("adamw: grad must be a contiguous fp32 or bf16 or fp16 array"));
  EXPECT_THAT(message([](auto& s) { s.states[0] = at::zeros({10}, at::kBFloat16); }),
              HasSubstr("adamw: exp_avg must be a contiguous fp32 array"));
  EXPECT_THAT(message([](auto& s) { s.param_copy = at::zeros({10}); }),
              HasSubstr("adamw: param_copy must be a contiguous bf16 or fp16"));
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
  std::get<AdamOptions>(options.rule).beta2 = 1.0;
  EXPECT_THAT(message(options), HasSubstr("adamw: betas[1] must be in [0, 1), got 1"));
  options = adam_options(false);
  std::get<AdamOptions>(options.rule).eps = -1;
  EXPECT_THAT(message(options), HasSubstr("adam: eps must be at least 0, got -1"));
  options = adam_options();
  std::get<AdamOptions>(options.rule).lr = std::nan("");
  EXPECT_THAT(message(options), HasSubstr("adamw: lr"));
  options = {.rule = LambOptions{}};
  std::get<LambOptions>(options.rule).max_coeff = 0.001;
  EXPECT_THAT(message(options), HasSubstr("lamb: max_coeff must be at least min_coeff, got 0.001"));
  options = {.rule = LambOptions{}};
  options.state_type = StateType::int8;
  EXPECT_THAT(message(options), HasSubstr("lamb does not support 8-bit states"));
  options = {.rule = LionOptions{}};
  std::get<LionOptions>(options.rule).beta1 = 1;
  EXPECT_THAT(message(options), HasSubstr("lion: betas[0] must be in [0, 1), got 1"));
  options = {.rule = AdagradOptions{}};
  std::get<AdagradOptions>(options.rule).lr_decay = -1;
  EXPECT_THAT(message(options), HasSubstr("adagrad: lr_decay must be at least 0, got -1"));
  options = {.rule = RmspropOptions{}};
  std::get<RmspropOptions>(options.rule).alpha = 2;
  EXPECT_THAT(message(options), HasSubstr("rmsprop: alpha must be in [0, 1], got 2"));
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

TEST(SquaredNormTest, OfNarrowGradientsIsThatOfTheirValues) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor grad = values(3, 2 * kBlock + 123).to(type);
    EXPECT_EQ(squared_norm(grad), squared_norm(grad.to(at::kFloat)));
  }
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

/// Ten thousand gradients after which a state of fp32 is far from where it began, by steps that are each too small for
/// bf16 and 8 bits.
struct Slow {
  const char* name;
  OptimizerOptions options;
  size_t state; // that is watched
  double begin;
  double gradient; // about this, another one for each element
};

TEST(OptimizerTest, NarrowStatesFollowSmallSteps) {
  const Slow all[] = {{"adam", {.rule = AdamOptions{}}, 1, 1, 0.01},
                      {"lamb", {.rule = LambOptions{}}, 1, 1, 0.01},
                      {"rmsprop", {.rule = RmspropOptions{.alpha = 0.999}}, 0, 1, 0.01},
                      {"adagrad", {.rule = AdagradOptions{}}, 0, 1, 0.03},
                      {"lion", {.rule = LionOptions{.beta2 = 0.999}}, 0, 1, 0.2}};
  constexpr int64_t n = 2 * kStateBlock;
  for (const Slow& c : all) {
    const auto state_after = [&](StateType type) {
      OptimizerOptions options = c.options;
      options.state_type = type;
      const auto optimizer = make_optimizer(options);
      const std::vector<Segment> segments = {{0, n, 0}};
      ShardStep shard;
      shard.param = at::zeros({n});
      shard.segments = segments;
      for (const StateInfo& info : optimizer->states()) {
        const at::Tensor values = at::full({n}, c.begin);
        shard.states.push_back(values.to(scalar_type(type)));
        if (type == StateType::int8) {
          shard.scales.push_back(at::zeros({n / kStateBlock}));
          encode_states(values, shard.states.back(), shard.scales.back(), info.is_signed);
        }
      }
      shard.grad = at::linspace(0.5, 1.5, n) * c.gradient;
      shard.grad[0] = 1; // in 8 bits a block's scale must not move along
      const at::Tensor norms = at::zeros({2}, at::kDouble);
      for (int64_t step = 1; step <= 10000; ++step) {
        shard.step = step;
        if (optimizer->needs_norms()) {
          optimizer->prepare(shard, norms);
          shard.norms = norms;
        }
        optimizer->step(shard);
      }
      const at::Tensor found = type == StateType::int8 ? decode_states(shard.states[c.state], shard.scales[c.state],
                                                                       optimizer->states()[c.state].is_signed)
                                                       : shard.states[c.state].to(at::kFloat);
      return found.slice(0, 1);
    };
    const at::Tensor fp32 = state_after(StateType::fp32);
    EXPECT_GT((fp32.mean() - c.begin).abs().item<double>(), 0.5) << c.name << ": the state must have moved";
    const at::Tensor bf16 = state_after(StateType::bf16) / fp32;
    EXPECT_NEAR(bf16.mean().item<double>(), 1, 0.03) << c.name;
    EXPECT_LE((bf16 - 1).abs().max().item<double>(), 0.8) << c.name << ": no element is left behind";
    if (!std::holds_alternative<LambOptions>(c.options.rule)) {
      // Coarser: the second moment is 1/10000 of the block's largest, where 8 bits have eight values for a factor of 8.
      EXPECT_NEAR((state_after(StateType::int8) / fp32).mean().item<double>(), 1, 0.15) << c.name;
    }
  }
}

} // namespace
} // namespace trireme::optim
