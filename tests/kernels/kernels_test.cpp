#include <trireme/kernels/kernels.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace trireme::kernels {
namespace {

// More than one batch of eight registers of sixteen floats, with every remainder.
constexpr int64_t kLargest = 300;
constexpr int64_t kRoom = kLargest + 32;
constexpr float kUntouched = 12345.5f;

std::vector<Simd> wide_sets() {
  std::vector<Simd> sets;
  for (Simd simd : {Simd::avx2, Simd::avx512}) {
    if (supported(simd)) {
      sets.push_back(simd);
    }
  }
  return sets;
}

/// Four arrays of which [offset, offset + n) is to be worked on; the rest must stay as it is.
struct Arrays {
  Arrays(int64_t offset, int64_t n, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (auto* array : {&param, &grad, &first, &second}) {
      array->assign(kRoom, kUntouched);
      for (int64_t i = offset; i < offset + n; ++i) {
        (*array)[i] = normal(generator) * std::exp2(static_cast<float>(generator() % 24) - 16.0f);
      }
    }
    for (float& x : second) {
      x = std::abs(x);
    }
  }

  std::vector<float> param, grad, first, second;

  bool same_bits(const Arrays& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(param, other.param) && same(grad, other.grad) && same(first, other.first) && same(second, other.second);
  }
};

AdamArgs adam_args(Arrays& a, bool decay_in_gradient) {
  AdamArgs args;
  args.param = a.param.data();
  args.grad = a.grad.data();
  args.exp_avg = {a.first.data()};
  args.exp_avg_sq = {a.second.data()};
  args.grad_scale = 0.37f;
  args.weight_decay = decay_in_gradient ? 0.013f : 0;
  args.param_scale = decay_in_gradient ? 1 : 0.9987f;
  args.one_minus_beta1 = 0.1f;
  args.beta2 = 0.95f;
  args.one_minus_beta2 = 0.05f;
  args.step_size = 3e-3f;
  args.root_scale = 1.7f;
  args.eps = 1e-8f;
  return args;
}

SgdArgs sgd_args(Arrays& a) {
  SgdArgs args;
  args.param = a.param.data();
  args.grad = a.grad.data();
  args.momentum_buffer = {a.first.data()};
  args.grad_scale = 0.37f;
  args.weight_decay = 0.013f;
  args.lr = 0.07f;
  args.momentum = 0.9f;
  args.one_minus_dampening = 0.8f;
  return args;
}

// Begins 0..16 cover every alignment of a 64-byte register.
template <class F>
void for_each_range(const F& f) {
  for (int64_t n = 0; n <= kLargest; ++n) {
    for (int64_t begin : {0, 1, 3, 8, 16}) {
      f(begin, n);
    }
  }
}

TEST(KernelsTest, AdamHasTheSameBitsInEverySet) {
  for (Simd simd : wide_sets()) {
    for (bool decay_in_gradient : {false, true}) {
      for_each_range([&](int64_t begin, int64_t n) {
        Arrays ours(begin, n, 7), scalar(begin, n, 7);
        kernel_set(simd).adam(adam_args(ours, decay_in_gradient), begin, begin + n);
        kernel_set(Simd::scalar).adam(adam_args(scalar, decay_in_gradient), begin, begin + n);
        ASSERT_TRUE(ours.same_bits(scalar)) << name(simd) << " n " << n << " begin " << begin;
      });
    }
  }
}

// Both moments are those of the step already, and the gradient may be anything.
TEST(KernelsTest, AdamWithHeldMomentsChangesParametersOnly) {
  for (Simd simd : wide_sets()) {
    for_each_range([&](int64_t begin, int64_t n) {
      Arrays found(begin, n, 7);
      std::fill(found.grad.begin(), found.grad.end(), std::numeric_limits<float>::quiet_NaN());
      Arrays wanted = found;
      AdamArgs args = adam_args(found, false);
      args.one_minus_beta1 = 0;
      args.beta2 = 1;
      args.one_minus_beta2 = 0;
      for (int64_t i = begin; i < begin + n; ++i) {
        const auto at = static_cast<size_t>(i);
        wanted.param[at] = std::fma(
            -args.step_size, wanted.first[at] / std::fma(std::sqrt(wanted.second[at]), args.root_scale, args.eps),
            wanted.param[at] * args.param_scale);
      }
      kernel_set(simd).adam(args, begin, begin + n);
      ASSERT_TRUE(found.same_bits(wanted)) << name(simd) << " n " << n << " begin " << begin;
    });
  }
}

TEST(KernelsTest, SgdHasTheSameBitsInEverySet) {
  for (Simd simd : wide_sets()) {
    for (int variant = 0; variant < 4; ++variant) {
      for_each_range([&](int64_t begin, int64_t n) {
        Arrays ours(begin, n, 8), scalar(begin, n, 8);
        const auto run = [&](Simd set, Arrays& arrays) {
          SgdArgs args = sgd_args(arrays);
          args.first = variant == 1;
          args.nesterov = variant == 2;
          if (variant == 3) {
            args.momentum_buffer = {};
          }
          kernel_set(set).sgd(args, begin, begin + n);
        };
        run(simd, ours);
        run(Simd::scalar, scalar);
        ASSERT_TRUE(ours.same_bits(scalar)) << name(simd) << " variant " << variant << " n " << n << " begin " << begin;
      });
    }
  }
}

TEST(KernelsTest, SquaredNormHasTheSameBitsInEverySet) {
  for (Simd simd : wide_sets()) {
    for_each_range([&](int64_t begin, int64_t n) {
      const Arrays arrays(begin, n, 9);
      const float* x = arrays.grad.data() + begin;
      ASSERT_EQ(kernel_set(simd).squared_norm(x, Element::f32, n),
                kernel_set(Simd::scalar).squared_norm(x, Element::f32, n))
          << name(simd) << ' ' << n;
    });
  }
}

// The formula of the header in double: fp32 may differ by the roundings of its few operations.
TEST(KernelsTest, AdamIsTheFormula) {
  for (Simd simd : {Simd::scalar, active_simd()}) {
    for (bool decay_in_gradient : {false, true}) {
      const Arrays before(0, kLargest, 10);
      Arrays after = before;
      const AdamArgs args = adam_args(after, decay_in_gradient);
      kernel_set(simd).adam(args, 0, kLargest);
      for (int64_t i = 0; i < kLargest; ++i) {
        const double p = before.param[i];
        const double g =
            static_cast<double>(before.grad[i]) * args.grad_scale + static_cast<double>(args.weight_decay) * p;
        const double m = before.first[i] + args.one_minus_beta1 * (g - before.first[i]);
        const double v = static_cast<double>(args.beta2) * before.second[i] + args.one_minus_beta2 * g * g;
        const double change = args.step_size * m / (std::sqrt(v) * args.root_scale + args.eps);
        const double size_m = std::abs(g) + std::abs(before.first[i]);
        EXPECT_NEAR(after.first[i], m, 2e-7 * size_m);
        EXPECT_NEAR(after.second[i], v, 4e-7 * v);
        EXPECT_NEAR(after.param[i], p * args.param_scale - change,
                    2e-7 * std::abs(p) + 1e-6 * args.step_size * size_m / std::sqrt(v));
      }
    }
  }
}

TEST(KernelsTest, SgdFirstStepIgnoresTheBuffer) {
  Arrays arrays(0, kLargest, 11);
  const Arrays before = arrays;
  arrays.first.assign(kRoom, std::numeric_limits<float>::quiet_NaN());
  SgdArgs args = sgd_args(arrays);
  args.first = true;
  args.weight_decay = 0;
  active_kernels().sgd(args, 0, kLargest);
  for (int64_t i = 0; i < kLargest; ++i) {
    EXPECT_EQ(arrays.first[i], before.grad[i] * args.grad_scale);
    EXPECT_EQ(arrays.param[i], std::fma(-args.lr, arrays.first[i], before.param[i]));
  }
}

TEST(KernelsTest, SquaredNormIsTheSum) {
  const Arrays arrays(0, kLargest, 12);
  double sum = 0;
  for (int64_t i = 0; i < kLargest; ++i) {
    sum += static_cast<double>(arrays.grad[i]) * arrays.grad[i];
  }
  EXPECT_NEAR(active_kernels().squared_norm(arrays.grad.data(), Element::f32, kLargest), sum, 1e-14 * sum);
  EXPECT_EQ(active_kernels().squared_norm(nullptr, Element::f32, 0), 0.0);
}

TEST(KernelsTest, NotANumberStaysVisible) {
  for (Simd simd : {Simd::scalar, active_simd()}) {
    Arrays arrays(0, kLargest, 13);
    arrays.grad[5] = std::numeric_limits<float>::quiet_NaN();
    arrays.grad[290] = std::numeric_limits<float>::infinity();
    kernel_set(simd).adam(adam_args(arrays, false), 0, kLargest);
    EXPECT_TRUE(std::isnan(arrays.param[5]));
    EXPECT_TRUE(std::isnan(arrays.param[290]));
    EXPECT_TRUE(std::isfinite(arrays.param[6]));
    EXPECT_TRUE(std::isnan(kernel_set(simd).squared_norm(arrays.grad.data(), Element::f32, kLargest)));
  }
}

template <class T>
void expect_combined(Element element, Simd simd, int inputs, int64_t n,
                     const std::function<T(const std::vector<T>&)>& formula) {
  std::mt19937 generator(7);
  std::vector<std::vector<T>> arrays(inputs);
  std::vector<const void*> in;
  for (auto& array : arrays) {
    for (int64_t i = 0; i < n; ++i) {
      array.push_back(static_cast<T>(static_cast<int>(generator() % 2000) - 1000));
    }
    in.push_back(array.data());
  }
  std::vector<T> first(n);
  const auto before = arrays;
  void* out[] = {first.data(), arrays[0].data()}; // one of them an input
  kernel_set(simd).combine({in.data(), inputs, out, 2, element, Combine::sum}, 1, n);
  for (int64_t i = 1; i < n; ++i) {
    std::vector<T> values;
    for (const auto& array : before) {
      values.push_back(array[i]);
    }
    ASSERT_EQ(first[i], formula(values)) << name(simd) << ' ' << i;
    ASSERT_EQ(arrays[0][i], first[i]);
  }
  EXPECT_EQ(first[0], T{}) << "outside the range";
}

std::vector<Simd> all_sets() {
  auto sets = wide_sets();
  sets.push_back(Simd::scalar);
  return sets;
}

template <class T>
T add_in_order(const std::vector<T>& values) {
  T sum = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    sum = static_cast<T>(sum + values[i]);
  }
  return sum;
}

TEST(CombineTest, AddsEveryType) {
  for (const Simd simd : all_sets()) {
    for (const int inputs : {1, 2, 5}) {
      for (const int64_t n : {1, 2, 100, 1000}) {
        expect_combined<float>(Element::f32, simd, inputs, n, add_in_order<float>);
        expect_combined<double>(Element::f64, simd, inputs, n, add_in_order<double>);
        expect_combined<uint8_t>(Element::u8, simd, inputs, n, add_in_order<uint8_t>);
        expect_combined<int8_t>(Element::i8, simd, inputs, n, add_in_order<int8_t>);
        expect_combined<int16_t>(Element::i16, simd, inputs, n, add_in_order<int16_t>);
        expect_combined<int32_t>(Element::i32, simd, inputs, n, add_in_order<int32_t>);
        expect_combined<int64_t>(Element::i64, simd, inputs, n, add_in_order<int64_t>);
      }
    }
  }
}

/// Every 16-bit pattern plus the same patterns in another order: all roundings, subnormals, infinities.
TEST(CombineTest, NarrowFloatsHaveTheSameBitsInEverySet) {
  std::vector<uint16_t> a(65536), b(65536), wanted(65536), found(65536);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<uint16_t>(i);
    b[i] = static_cast<uint16_t>(i * 40503 + 11);
  }
  const void* in[] = {a.data(), b.data()};
  for (const Element element : {Element::f16, Element::bf16}) {
    for (const int inputs : {1, 2}) {
      for (const Combine combine : {Combine::sum, Combine::max, Combine::min}) {
        void* out[] = {wanted.data()};
        kernel_set(Simd::scalar).combine({in, inputs, out, 1, element, combine}, 0, 65536);
        const uint16_t infinity = element == Element::f16 ? 0x7c00 : 0x7f80;
        const auto is_nan = [&](uint16_t x) { return (x & 0x7fff) > infinity; };
        for (size_t i = 0; i < a.size(); ++i) {
          if (inputs == 1) {
            ASSERT_EQ(is_nan(wanted[i]), is_nan(a[i]));
            ASSERT_TRUE(is_nan(a[i]) || wanted[i] == a[i]) << "there and back is the same";
          } else if (is_nan(a[i]) || is_nan(b[i])) {
            ASSERT_TRUE(is_nan(wanted[i]));
          }
        }
        for (const Simd simd : wide_sets()) {
          out[0] = found.data();
          kernel_set(simd).combine({in, inputs, out, 1, element, combine}, 0, 65536);
          for (size_t i = 0; i < a.size(); ++i) {
            ASSERT_TRUE(found[i] == wanted[i] || (is_nan(found[i]) && is_nan(wanted[i])))
                << name(simd) << ' ' << i << ": " << found[i] << ", scalar " << wanted[i];
          }
        }
      }
    }
  }
}

TEST(CombineTest, NarrowFloatsAreRoundedToNearestEven) {
  const auto sum = [](Element element, uint16_t x, uint16_t y) {
    const void* in[] = {&x, &y};
    uint16_t result = 0;
    void* out[] = {&result};
    active_kernels().combine({in, 2, out, 1, element, Combine::sum}, 0, 1);
    return result;
  };
  EXPECT_EQ(sum(Element::f16, 0x6800, 0x3c00), 0x6800);  // 2048 + 1 lies between 2048 and 2050
  EXPECT_EQ(sum(Element::f16, 0x6801, 0x3c00), 0x6802);  // 2050 + 1: to 2052, the even one
  EXPECT_EQ(sum(Element::f16, 0x7bff, 0x7bff), 0x7c00);  // infinite
  EXPECT_EQ(sum(Element::f16, 0x0001, 0x0001), 0x0002);  // subnormal
  EXPECT_EQ(sum(Element::bf16, 0x4380, 0x3f80), 0x4380); // 256 + 1
  EXPECT_EQ(sum(Element::bf16, 0x4381, 0x3f80), 0x4382); // 258 + 1: to 260
}

TEST(CombineTest, CopiesAtAnyAlignment) {
  std::vector<char> from(5000), to(5100);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<char>(i * 7);
  }
  for (const Simd simd : all_sets()) {
    for (int64_t offset = 0; offset < 70; offset += 3) {
      for (const int64_t bytes : {0, 1, 63, 64, 65, 200, 4800}) {
        std::fill(to.begin(), to.end(), 'x');
        kernel_set(simd).stream_copy(to.data() + offset, from.data() + offset % 5, bytes);
        ASSERT_EQ(std::memcmp(to.data() + offset, from.data() + offset % 5, bytes), 0);
        ASSERT_TRUE(std::all_of(to.begin(), to.begin() + offset, [](char c) { return c == 'x'; }));
        ASSERT_TRUE(std::all_of(to.begin() + offset + bytes, to.end(), [](char c) { return c == 'x'; }));
      }
    }
  }
}

} // namespace
} // namespace trireme::kernels
