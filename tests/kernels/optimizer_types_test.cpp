// Every optimizer with every type of gradient, copy and state: the same bits in every instruction set and however a
// range is cut, and the same as converting first, stepping in fp32, and converting back.

#include "states.h"

#include <trireme/kernels/kernels.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace trireme::kernels {
namespace {

constexpr int64_t kSize = 2 * 1024 + 256 + 77; // pieces of 1024, a whole block of states, an odd rest
const char* const kRules[] = {"adam",         "adam_decayed", "sgd",     "sgd_momentum",     "nesterov",
                              "lion",         "adagrad",      "rmsprop", "rmsprop_centered", "rmsprop_momentum",
                              "rmsprop_both", "lamb"};

/// Arrays to step on, with one type each.
struct Shard {
  Shard(Element grad_type, bool with_copy, Element copy_type, Element state_type, unsigned seed, int64_t n = kSize)
      : grad_type(grad_type), with_copy(with_copy), copy_type(copy_type) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    const auto random = [&](bool positive) {
      std::vector<float> values(n);
      for (float& x : values) {
        x = normal(generator) * std::exp2(static_cast<float>(generator() % 12) - 8.0F);
        x = positive ? x * x : x;
      }
      return values;
    };
    param = random(false);
    grad = random(false);
    if (grad_type != Element::f32) {
      grad16 = narrowed(grad, grad_type);
      for (int64_t i = 0; i < n; ++i) {
        grad[i] = widened(grad16[i], grad_type);
      }
    }
    copy.resize(n);
    first = std::make_unique<State>(random(false), state_type, true);
    second = std::make_unique<State>(random(true), state_type, false);
    third = std::make_unique<State>(random(false), state_type, true);
    // rmsprop's v - a^2 must not be negative.
    average = std::make_unique<State>(std::vector<float>(n), state_type, true);
  }

  template <class Args>
  Args args() {
    Args args;
    args.param = param.data();
    args.grad = grad16.empty() ? static_cast<const void*>(grad.data()) : grad16.data();
    args.grad_type = grad_type;
    args.param_copy = with_copy ? copy.data() : nullptr;
    args.copy_type = copy_type;
    args.grad_scale = 0.37F;
    args.seed = seed;
    return args;
  }

  void step(const std::string& rule, Simd simd, int64_t begin, int64_t end) {
    const KernelSet& kernels = kernel_set(simd);
    if (rule.starts_with("adam")) {
      auto a = args<AdamArgs>();
      a.exp_avg = first->array();
      a.exp_avg_sq = second->array();
      a.weight_decay = rule == "adam" ? 0 : 0.013F;
      a.param_scale = rule == "adam" ? 0.9987F : 1;
      a.one_minus_beta1 = 0.1F;
      a.beta2 = 0.95F;
      a.one_minus_beta2 = 0.05F;
      a.step_size = 3e-3F;
      a.root_scale = 1.7F;
      a.eps = 1e-8F;
      kernels.adam(a, begin, end);
    } else if (rule == "sgd" || rule == "sgd_momentum" || rule == "nesterov") {
      auto a = args<SgdArgs>();
      a.momentum_buffer = rule == "sgd" ? StateArray{} : first->array();
      a.weight_decay = 0.013F;
      a.lr = 0.07F;
      a.momentum = 0.9F;
      a.one_minus_dampening = 0.8F;
      a.nesterov = rule == "nesterov";
      kernels.sgd(a, begin, end);
    } else if (rule == "lion") {
      auto a = args<LionArgs>();
      a.exp_avg = first->array();
      a.param_scale = 0.999F;
      a.lr = 1e-3F;
      a.one_minus_beta1 = 0.1F;
      a.one_minus_beta2 = 0.01F;
      kernels.lion(a, begin, end);
    } else if (rule == "adagrad") {
      auto a = args<AdagradArgs>();
      a.sum = second->array();
      a.weight_decay = 0.013F;
      a.lr = 0.01F;
      a.eps = 1e-10F;
      kernels.adagrad(a, begin, end);
    } else if (rule.starts_with("rmsprop")) {
      auto a = args<RmspropArgs>();
      a.square_avg = second->array();
      if (rule == "rmsprop_centered" || rule == "rmsprop_both") {
        a.grad_avg = average->array();
      }
      if (rule == "rmsprop_momentum" || rule == "rmsprop_both") {
        a.momentum_buffer = third->array();
      }
      a.weight_decay = 0.013F;
      a.lr = 0.01F;
      a.alpha = 0.9F;
      a.one_minus_alpha = 0.1F;
      a.momentum = 0.8F;
      a.eps = 1e-8F;
      kernels.rmsprop(a, begin, end);
    } else {
      auto a = args<LambArgs>();
      a.exp_avg = first->array();
      a.exp_avg_sq = second->array();
      a.weight_decay = 0.013F;
      a.one_minus_beta1 = 0.1F;
      a.beta2 = 0.95F;
      a.one_minus_beta2 = 0.05F;
      a.eps = 1e-6F;
      a.step_size = 0.01F;
      const LambSums part = kernels.lamb_moments(a, begin, end);
      sums.param += part.param;
      sums.update += part.update;
      kernels.lamb_apply(a, begin, end);
    }
  }

  void expect_equal(const Shard& other, const std::string& what) const {
    EXPECT_EQ(std::memcmp(param.data(), other.param.data(), param.size() * sizeof(float)), 0) << what;
    EXPECT_EQ(copy, other.copy) << what;
    EXPECT_TRUE(*first == *other.first && *second == *other.second && *third == *other.third &&
                *average == *other.average)
        << what;
  }

  Element grad_type;
  bool with_copy;
  Element copy_type;
  std::vector<float> param, grad;
  std::vector<uint16_t> grad16, copy;
  std::unique_ptr<State> first, second, third, average;
  uint32_t seed = kSeed;
  LambSums sums;
};

struct Types {
  Element grad, copy, state;
  bool with_copy;
};
const Types kTypes[] = {
    {Element::f32, Element::bf16, Element::f32, false},  {Element::bf16, Element::bf16, Element::f32, true},
    {Element::f16, Element::f16, Element::f32, true},    {Element::f32, Element::f16, Element::f32, true},
    {Element::bf16, Element::bf16, Element::bf16, true}, {Element::bf16, Element::bf16, Element::u8, true},
    {Element::f32, Element::bf16, Element::u8, false}};

Shard make(const Types& t, unsigned seed = 5) {
  return {t.grad, t.with_copy, t.copy, t.state, seed};
}

std::string describe(const std::string& rule, Simd simd, const Types& t) {
  return rule + ' ' + name(simd) + " grad " + std::to_string(static_cast<int>(t.grad)) + " state " +
         std::to_string(static_cast<int>(t.state));
}

TEST(OptimizerTypesTest, SameBitsInEverySetAndForAnyCut) {
  for (const std::string rule : kRules) {
    for (const Types& t : kTypes) {
      Shard wanted = make(t);
      wanted.step(rule, Simd::scalar, 0, kSize);
      for (const Simd simd : sets_here()) {
        Shard whole = make(t);
        whole.step(rule, simd, 0, kSize);
        whole.expect_equal(wanted, describe(rule, simd, t));
        EXPECT_EQ(whole.sums.param, wanted.sums.param);
        EXPECT_EQ(whole.sums.update, wanted.sums.update);
        // Blocks of 8-bit states are not cut; anything else may be anywhere.
        Shard cut = make(t);
        const int64_t middle = t.state == Element::u8 ? 3 * kStateBlock : 3 * kStateBlock + 41;
        cut.step(rule, simd, 0, middle);
        cut.step(rule, simd, middle, kSize);
        cut.expect_equal(wanted, describe(rule, simd, t) + " cut");
      }
    }
  }
}

void expect_step_in_fp32_with_conversions_around(uint32_t seed) {
  for (const std::string rule : kRules) {
    for (const Types& t : kTypes) {
      Shard ours = make(t);
      ours.seed = seed;
      Shard fp32 = make({Element::f32, t.copy, Element::f32, false});
      fp32.param = ours.param;
      fp32.grad = ours.grad;
      for (auto [to, from] : {std::pair(&fp32.first, &ours.first),
                              {&fp32.second, &ours.second},
                              {&fp32.third, &ours.third},
                              {&fp32.average, &ours.average}}) {
        (*to)->floats = (*from)->read();
      }
      if (rule == "lamb" && t.state != Element::f32) {
        continue; // its second phase sees the rounded states
      }
      ours.step(rule, active_simd(), 0, kSize);
      fp32.step(rule, active_simd(), 0, kSize);
      EXPECT_EQ(ours.param, fp32.param) << describe(rule, active_simd(), t);
      if (t.with_copy) {
        EXPECT_EQ(ours.copy, narrowed(fp32.param, t.copy));
      }
      for (auto [a, b] : {std::pair(&ours.first, &fp32.first),
                          {&ours.second, &fp32.second},
                          {&ours.third, &fp32.third},
                          {&ours.average, &fp32.average}}) {
        const auto values = (*b)->floats;
        // What a rule does not use stays as it was: exact, so rounding changes nothing.
        const State rounded(values, t.state, (*a)->is_signed, seed);
        const State untouched(values, t.state, (*a)->is_signed);
        EXPECT_TRUE(**a == rounded || (t.state == Element::u8 && **a == untouched)) << describe(rule, active_simd(), t);
      }
    }
  }
}

TEST(OptimizerTypesTest, IsTheStepInFp32WithConversionsAround) {
  expect_step_in_fp32_with_conversions_around(kSeed);
  expect_step_in_fp32_with_conversions_around(kToNearest);
}

// Phase 1 sums what phase 2 subtracts: with a step of 1 that is the change of the parameters.
TEST(OptimizerTypesTest, LambSumsAreThoseOfItsUpdate) {
  for (const Types& t : kTypes) {
    if (t.state == Element::u8) {
      continue;
    }
    Shard setup = make(t);
    const std::vector<float> before = setup.param;
    setup.step("lamb", active_simd(), 0, kSize);
    double weights = 0, updates = 0;
    for (int64_t i = 0; i < kSize; ++i) {
      weights += static_cast<double>(before[i]) * before[i];
      const double u = (static_cast<double>(before[i]) - setup.param[i]) / 0.01F;
      updates += u * u;
    }
    EXPECT_NEAR(setup.sums.param, weights, 1e-12 * weights);
    EXPECT_NEAR(setup.sums.update, updates, 1e-4 * updates);
  }
}

TEST(OptimizerTypesTest, SquaredNormOfNarrowGradients) {
  for (const Element type : {Element::bf16, Element::f16}) {
    for (const int64_t n : {0, 1, 31, 1000, 1024, 1025, 5000}) {
      std::vector<float> values(n);
      for (int64_t i = 0; i < n; ++i) {
        values[i] = std::sin(static_cast<float>(i)) * 3;
      }
      const std::vector<uint16_t> narrow = narrowed(values, type);
      for (int64_t i = 0; i < n; ++i) {
        values[i] = widened(narrow[i], type);
      }
      for (const Simd simd : sets_here()) {
        EXPECT_EQ(kernel_set(simd).squared_norm(narrow.data(), type, n),
                  kernel_set(Simd::scalar).squared_norm(values.data(), Element::f32, n));
      }
    }
  }
  std::vector<uint16_t> largest(100, 0x7f7f);
  EXPECT_TRUE(std::isfinite(active_kernels().squared_norm(largest.data(), Element::bf16, 100)));
  largest[77] = 0x7f80;
  EXPECT_TRUE(std::isinf(active_kernels().squared_norm(largest.data(), Element::bf16, 100)));
  largest[99] = 0x7fc1;
  EXPECT_TRUE(std::isnan(active_kernels().squared_norm(largest.data(), Element::bf16, 100)));
}

} // namespace
} // namespace trireme::kernels
