// Every optimizer with every type of gradient, copy and state: the same bits in every instruction set and however a range is cut, and
// the same as converting first, stepping in fp32, and converting back.

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
const char* const kRules[] = {"adam", "adam_decayed", "sgd", "sgd_momentum", "nesterov", "lion", "adagrad", "rmsprop", "rmsprop_centered",
                              "rmsprop_momentum", "rmsprop_both", "lamb"};

std::vector<Simd> sets_here() {
  std::vector<Simd> sets = {Simd::scalar};
  for (Simd simd : {Simd::avx2, Simd::avx512}) {
    if (supported(simd)) {
      sets.push_back(simd);
    }
  }
  return sets;
}

// To bf16 or f16, as combine() rounds; its own test compares that with the definition.
std::vector<uint16_t> narrowed(const std::vector<float>& values, Element type) {
  std::vector<uint16_t> out(values.size());
  SgdArgs copy; // param - 0 * g, written as a copy
  std::vector<float> same = values;
  copy.param = same.data();
  copy.grad = values.data();
  copy.param_copy = out.data();
  copy.copy_type = type;
  kernel_set(Simd::scalar).sgd(copy, 0, static_cast<int64_t>(values.size()));
  return out;
}

float widened(uint16_t x, Element type) {
  if (type == Element::bf16) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  const int exponent = (x >> 10) & 31;
  const double fraction = (x & 1023) / 1024.0;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return static_cast<float>(x & 0x8000 ? -magnitude : magnitude);
}

constexpr uint32_t kSeed = 0x9e3779b9;

/// Stochastic rounding as kernels/stochastic.h defines it.
uint16_t stochastic(float x, uint32_t seed) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  uint32_t hash = bits ^ seed;
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bU;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35U;
  return static_cast<uint16_t>((bits + (hash >> 16)) >> 16);
}

struct State {
  State(std::vector<float> values, Element type, bool is_signed, uint32_t seed = kToNearest) : type(type), is_signed(is_signed), floats(std::move(values)) {
    if (type == Element::bf16 && seed == kToNearest) {
      halves = narrowed(floats, type);
    } else if (type == Element::bf16) {
      for (const float x : floats) {
        halves.push_back(stochastic(x, seed));
      }
    } else if (type == Element::u8) {
      codes.resize(floats.size());
      scales.resize((floats.size() + kStateBlock - 1) / kStateBlock);
      kernel_set(Simd::scalar).encode_state(array(), is_signed, 0, static_cast<int64_t>(floats.size()), floats.data(), seed);
    }
  }
  StateArray array() {
    void* values = type == Element::f32 ? static_cast<void*>(floats.data()) : type == Element::bf16 ? static_cast<void*>(halves.data()) : codes.data();
    return {values, type, scales.data()};
  }
  std::vector<float> read() {
    std::vector<float> out(floats.size());
    kernel_set(Simd::scalar).decode_state(array(), is_signed, 0, static_cast<int64_t>(out.size()), out.data());
    return out;
  }
  bool operator==(const State& other) const {
    return (type != Element::f32 || std::memcmp(floats.data(), other.floats.data(), floats.size() * sizeof(float)) == 0) &&
           halves == other.halves && codes == other.codes && scales == other.scales;
  }

  Element type;
  bool is_signed;
  std::vector<float> floats;
  std::vector<uint16_t> halves;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

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
    EXPECT_TRUE(*first == *other.first && *second == *other.second && *third == *other.third && *average == *other.average) << what;
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
const Types kTypes[] = {{Element::f32, Element::bf16, Element::f32, false}, {Element::bf16, Element::bf16, Element::f32, true},
                        {Element::f16, Element::f16, Element::f32, true},   {Element::f32, Element::f16, Element::f32, true},
                        {Element::bf16, Element::bf16, Element::bf16, true}, {Element::bf16, Element::bf16, Element::u8, true},
                        {Element::f32, Element::bf16, Element::u8, false}};

Shard make(const Types& t, unsigned seed = 5) {
  return {t.grad, t.with_copy, t.copy, t.state, seed};
}

std::string describe(const std::string& rule, Simd simd, const Types& t) {
  return rule + ' ' + name(simd) + " grad " + std::to_string(static_cast<int>(t.grad)) + " state " + std::to_string(static_cast<int>(t.state));
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
      for (auto [to, from] : {std::pair(&fp32.first, &ours.first), {&fp32.second, &ours.second}, {&fp32.third, &ours.third}, {&fp32.average, &ours.average}}) {
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
      for (auto [a, b] : {std::pair(&ours.first, &fp32.first), {&ours.second, &fp32.second}, {&ours.third, &fp32.third}, {&ours.average, &fp32.average}}) {
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

/// Rounded with many seeds: always to a neighbour, on average to itself, and exact numbers always to themselves.
TEST(StochasticRoundingTest, IsRightOnAverageInEverySet) {
  std::mt19937 generator(7);
  std::vector<float> values = {1, 0.999F, 0.9985F, -0.3F, 1e-12F, -3.14159F, 0.0F, 0.001F, -0.00017F, 0.5F, 1.0F / 3, 0.02F, 0.0625F, 0.7F, -0.011F, 0.19F, 0.44F};
  const auto n = static_cast<int64_t>(values.size());
  constexpr int kSeeds = 20000;
  for (const Element type : {Element::bf16, Element::u8}) {
    for (const bool is_signed : {true, false}) {
      std::vector<float> numbers = values;
      for (float& x : numbers) {
        x = is_signed ? x : std::abs(x);
      }
      if (type == Element::u8) {
        numbers[5] = 1; // the block's largest
      }
      State nearest(numbers, type, is_signed);
      std::vector<double> sums(numbers.size()), least(numbers.size(), 1e9), most(numbers.size(), -1e9);
      for (int k = 0; k < kSeeds; ++k) {
        const uint32_t seed = static_cast<uint32_t>(generator()) | 1U;
        State wanted(numbers, type, is_signed, seed);
        const std::vector<float> rounded = wanted.read();
        for (size_t i = 0; i < numbers.size(); ++i) {
          sums[i] += rounded[i];
          least[i] = std::min<double>(least[i], rounded[i]);
          most[i] = std::max<double>(most[i], rounded[i]);
        }
        if (k < 20) {
          for (const Simd simd : all_sets()) {
            State found(numbers, type, is_signed);
            kernel_set(simd).encode_state(found.array(), is_signed, 0, n, numbers.data(), seed);
            EXPECT_TRUE(found == wanted) << name(simd);
          }
        }
      }
      for (size_t i = 0; i < numbers.size(); ++i) {
        const double unit = most[i] - least[i]; // between the two neighbours
        EXPECT_LE(least[i], numbers[i]);
        EXPECT_GE(most[i], std::abs(numbers[i]) < 1e-9 ? 0 : numbers[i]);
        EXPECT_LE(unit, (type == Element::bf16 ? 1.0 / 128 : 0.9) * std::abs(numbers[i]) + 1e-6) << numbers[i];
        if (std::abs(numbers[i]) > 1e-9) { // below the map's smallest value, 8 bits round up
          EXPECT_NEAR(sums[i] / kSeeds, numbers[i], 4 * unit * 0.5 / std::sqrt(kSeeds) + 1e-7) << numbers[i];
        }
      }
      const std::vector<float> exact = nearest.read();
      if (type == Element::bf16) {
        EXPECT_EQ(State(exact, type, is_signed, kSeed).read(), exact);
      }
    }
  }
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
        EXPECT_EQ(kernel_set(simd).squared_norm(narrow.data(), type, n), kernel_set(Simd::scalar).squared_norm(values.data(), Element::f32, n));
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

/// The map's values, by asking for a block of all codes with scale 1.
std::vector<float> code_values(Simd simd, bool is_signed) {
  std::vector<uint8_t> codes(256);
  for (int c = 0; c < 256; ++c) {
    codes[c] = static_cast<uint8_t>(c);
  }
  float scale = 1;
  std::vector<float> values(256);
  kernel_set(simd).decode_state({codes.data(), Element::u8, &scale}, is_signed, 0, 256, values.data());
  return values;
}

TEST(BlockwiseTest, ValuesAreTheDynamicTree) {
  for (const Simd simd : sets_here()) {
    for (const bool is_signed : {false, true}) {
      const std::vector<float> values = code_values(simd, is_signed);
      const int largest = is_signed ? 127 : 255;
      const int top = is_signed ? 6 : 7;
      EXPECT_EQ(values[0], 0);
      EXPECT_EQ(values[1], std::pow(8.0, -top));
      EXPECT_EQ(values[largest], 1);
      EXPECT_EQ(values[largest / 2], 0.125);
      for (int c = 1; c <= largest; ++c) {
        const int k = static_cast<int>(std::log2(c));
        const double wanted = std::pow(8.0, k - top) * (0.125 + 0.875 * (c - (1 << k) + 1) / (1 << k));
        EXPECT_EQ(values[c], wanted) << c;
        EXPECT_GT(values[c], values[c - 1]);
        if (is_signed) {
          EXPECT_EQ(values[c + 128], -values[c]);
        }
      }
    }
  }
}

std::vector<uint8_t> encoded(Simd simd, bool is_signed, const std::vector<float>& values, std::vector<float>& scales) {
  std::vector<uint8_t> codes(values.size(), 99);
  scales.assign((values.size() + kStateBlock - 1) / kStateBlock, -1);
  kernel_set(simd).encode_state({codes.data(), Element::u8, scales.data()}, is_signed, 0, static_cast<int64_t>(values.size()), values.data(),
                                 kToNearest);
  return codes;
}

TEST(BlockwiseTest, EncodesToTheNearestValue) {
  std::mt19937 generator(3);
  for (const bool is_signed : {false, true}) {
    const std::vector<float> map = code_values(Simd::scalar, is_signed);
    std::vector<float> values(10 * kStateBlock + 33);
    for (float& x : values) {
      x = std::exp2(-static_cast<float>(generator() % 100000) / 4000.0F);
      x = is_signed && generator() % 2 == 0 ? -x : x;
    }
    std::vector<float> scales;
    const std::vector<uint8_t> codes = encoded(Simd::scalar, is_signed, values, scales);
    for (size_t i = 0; i < values.size(); ++i) {
      const float unit = values[i] / scales[i / kStateBlock];
      double nearest = 10;
      for (int c = is_signed ? 0 : 1; c < 256; ++c) {
        nearest = std::min(nearest, std::abs(static_cast<double>(map[c]) - unit));
      }
      EXPECT_LE(std::abs(static_cast<double>(map[codes[i]]) - unit), nearest + 1e-6) << values[i];
    }
    for (const Simd simd : sets_here()) {
      std::vector<float> own_scales;
      EXPECT_EQ(encoded(simd, is_signed, values, own_scales), codes) << name(simd);
      EXPECT_EQ(own_scales, scales);
    }
  }
}

TEST(BlockwiseTest, EncodingADecodedBlockGivesTheSameCodes) {
  std::mt19937 generator(4);
  for (const bool is_signed : {false, true}) {
    for (const float scale : {1.0F, 0.3F, 1.17e-38F * 1e10F, 3.3e38F, 7.77e-5F}) {
      std::vector<uint8_t> codes(3 * kStateBlock + 5);
      for (uint8_t& c : codes) {
        c = static_cast<uint8_t>(generator());
      }
      for (size_t i = 0; i < codes.size(); i += kStateBlock) {
        codes[i] = is_signed ? 127 : 255; // a block has its largest magnitude
      }
      std::vector<float> scales(4, scale), values(codes.size()), again;
      kernel_set(Simd::scalar).decode_state({codes.data(), Element::u8, scales.data()}, is_signed, 0, static_cast<int64_t>(codes.size()), values.data());
      EXPECT_EQ(encoded(active_simd(), is_signed, values, again), codes) << scale;
      EXPECT_EQ(again, scales);
    }
  }
}

TEST(BlockwiseTest, ExtremeBlocks) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Simd simd : sets_here()) {
    for (const bool is_signed : {false, true}) {
      for (const int64_t bad : {3, 200}) {
        for (const float extreme : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
          std::vector<float> values(kStateBlock + 10, 0.5F), scales;
          values[bad] = extreme;
          std::vector<uint8_t> codes = encoded(simd, is_signed, values, scales);
          kernel_set(simd).decode_state({codes.data(), Element::u8, scales.data()}, is_signed, 0, static_cast<int64_t>(values.size()), values.data());
          EXPECT_TRUE(std::isnan(values[0])) << "does not look like a state any more";
          EXPECT_EQ(values[kStateBlock], 0.5F);
        }
      }
      std::vector<float> tiny(20, 1e-30F), scales;
      EXPECT_EQ(encoded(simd, is_signed, tiny, scales), std::vector<uint8_t>(20));
      EXPECT_EQ(scales[0], 0);
      std::vector<float> wide = {1, 1e-20F, 0};
      const std::vector<uint8_t> codes = encoded(simd, is_signed, wide, scales);
      EXPECT_EQ(codes, (std::vector<uint8_t>{static_cast<uint8_t>(is_signed ? 127 : 255), static_cast<uint8_t>(is_signed ? 0 : 1), 0}))
          << "a second moment above 0 stays above 0";
    }
  }
}

TEST(OptimizerTypesTest, LionStaysWhereTheAverageIsZeroAndShowsNaN) {
  for (const Simd simd : sets_here()) {
    std::vector<float> param(40, 1), grad(40, 0), m(40, 0);
    grad[7] = std::numeric_limits<float>::quiet_NaN();
    grad[9] = -1e-30F;
    LionArgs args;
    args.param = param.data();
    args.grad = grad.data();
    args.exp_avg = {m.data()};
    args.lr = 0.5F;
    args.one_minus_beta1 = 0.1F;
    args.one_minus_beta2 = 0.1F;
    kernel_set(simd).lion(args, 0, 40);
    EXPECT_EQ(param[0], 1);
    EXPECT_TRUE(std::isnan(param[7]));
    EXPECT_EQ(param[9], 1.5F);
  }
}

} // namespace
} // namespace trireme::kernels
