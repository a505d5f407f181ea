// The CUDA kernels give the bits of the CPU's: on a CUDA device (kernels_cuda_test; skipped where there is none), and
// compiled for the CPU (kernels_cuda_on_cpu_test), which runs everywhere.

#include "device_arrays.h"

#include <trireme/kernels/cuda/cuda_kernels.h>
#include <trireme/kernels/kernels.h>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace trireme::kernels {
namespace {

/// Around the blocks' borders; the last: more blocks than one grid has.
constexpr int64_t kSizes[] = {1, 255, 256, 257, 1000};
constexpr int64_t kLarge = 100003;
constexpr int64_t kSeveralRounds = 4096 * kStateBlock + 300;

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
  }

  /// Three steps on both sides; the last rounds to nearest. `step(shard, on_device, seed, is_first)`.
  template <class Step>
  static void compare(int64_t n, const Types& types, const char* name, const Step& step) {
    Shard shard(n, types);
    for (const uint32_t seed : {12345U, 678U, kToNearest}) {
      step(shard, false, seed, seed == 12345U);
      step(shard, true, seed, seed == 12345U);
      shard.skips = true;
      step(shard, true, seed + 1, false);
      shard.skips = false;
    }
    EXPECT_TRUE(shard.same()) << name << ", " << n << " elements, states " << static_cast<int>(types.state)
                              << ", gradients " << static_cast<int>(types.grad) << ", copy "
                              << static_cast<int>(types.copy);
  }
  template <class Step>
  static void compare_all(const char* name, bool only_f32, const Step& step) {
    for (const Element state : {Element::f32, Element::bf16, Element::u8}) {
      if (only_f32 && state != Element::f32) {
        continue;
      }
      for (const int64_t n : kSizes) {
        for (const Element grad : {Element::f32, Element::bf16, Element::f16}) {
          for (const Element copy : {Element::f32, Element::bf16, Element::f16}) {
            compare(n, {state, grad, copy}, name, step);
          }
        }
      }
      compare(kLarge, {state, Element::bf16, Element::bf16}, name, step);
    }
  }
};

constexpr StepScalars kRow{.weight_decay = 0.02F,
                           .param_scale = 0.998F,
                           .step_size = 3e-3F,
                           .root_scale = 1.7F,
                           .one_minus_beta1 = 0.1F,
                           .beta2 = 0.95F,
                           .one_minus_beta2 = 0.05F,
                           .seed = 4321};

AdamArgs adam_args(Shard& shard, bool on_device, uint32_t seed, float weight_decay) {
  auto a = shard.args<AdamArgs>(on_device, seed);
  a.exp_avg = shard.state(0, on_device);
  a.exp_avg_sq = shard.state(1, on_device);
  a.weight_decay = weight_decay;
  a.param_scale = 0.9987F;
  a.one_minus_beta1 = 0.1F;
  a.beta2 = 0.95F;
  a.one_minus_beta2 = 0.05F;
  a.step_size = 3e-3F;
  a.root_scale = 1.7F;
  a.eps = 1e-8F;
  return a;
}

void adam_step(Shard& shard, bool on_device, uint32_t seed, bool) {
  const AdamArgs a = adam_args(shard, on_device, seed, 0);
  on_device ? cuda::adam(a, of(Segment{0, shard.n}), 1, nullptr) : active_kernels().adam(a, 0, shard.n);
}

TEST_F(CudaTest, AdamHasTheBitsOfTheCpu) {
  compare_all("adamw", false, adam_step);
  compare_all("adam", false, [](Shard& shard, bool on_device, uint32_t seed, bool) {
    const AdamArgs a = adam_args(shard, on_device, seed, 0.01F);
    on_device ? cuda::adam(a, of(Segment{0, shard.n}), 1, nullptr) : active_kernels().adam(a, 0, shard.n);
  });
}

TEST_F(CudaTest, AGridThatGoesRoundSeveralTimesHasTheBitsOfTheCpu) {
  for (const Types& types :
       {Types{Element::u8, Element::bf16, Element::bf16}, Types{Element::f32, Element::f32, Element::f16}}) {
    Shard shard(kSeveralRounds, types);
    adam_step(shard, false, 12345, true);
    adam_step(shard, true, 12345, true);
    EXPECT_TRUE(shard.same()) << static_cast<int>(types.state);
  }
}

// Parts of a shard begin anywhere: there elements move one by one.
TEST_F(CudaTest, RangesAndArraysOffMultiplesOfFourHaveTheBitsOfTheCpu) {
  for (const int64_t offset : {0, 1, 4}) {
    for (const int64_t begin : {0, 3, 4, 300}) {
      Shard shard(1300, {Element::bf16, Element::bf16, Element::bf16});
      for (const bool on_device : {false, true}) {
        AdamArgs a = adam_args(shard, on_device, 12345, 0);
        a.param += offset;
        a.grad = static_cast<const uint16_t*>(a.grad) + offset;
        a.param_copy = static_cast<uint16_t*>(a.param_copy) + offset;
        a.exp_avg.values = static_cast<uint16_t*>(a.exp_avg.values) + offset;
        a.exp_avg_sq.values = static_cast<uint16_t*>(a.exp_avg_sq.values) + offset;
        on_device ? cuda::adam(a, of(Segment{begin, 1290}), 1, nullptr) : active_kernels().adam(a, begin, 1290);
      }
      EXPECT_TRUE(shard.same()) << "from " << begin << ", arrays at " << offset;
    }
  }
}

TEST_F(CudaTest, SgdHasTheBitsOfTheCpu) {
  for (const int kind : {0, 1, 2}) { // plain, momentum, Nesterov
    const std::string name = std::string("sgd ") + std::to_string(kind);
    compare_all(name.c_str(), kind == 0, [=](Shard& shard, bool on_device, uint32_t seed, bool is_first) {
      auto a = shard.args<SgdArgs>(on_device, seed);
      if (kind > 0) {
        a.momentum_buffer = shard.state(0, on_device);
      }
      a.nesterov = kind == 2;
      a.first = is_first;
      a.weight_decay = 0.02F;
      a.lr = 0.1F;
      a.momentum = 0.9F;
      a.one_minus_dampening = kind == 1 ? 0.8F : 1.0F;
      on_device ? cuda::sgd(a, of(Segment{0, shard.n}), 1, nullptr) : active_kernels().sgd(a, 0, shard.n);
    });
  }
}

TEST_F(CudaTest, LionAndAdagradHaveTheBitsOfTheCpu) {
  compare_all("lion", false, [](Shard& shard, bool on_device, uint32_t seed, bool) {
    auto a = shard.args<LionArgs>(on_device, seed);
    a.exp_avg = shard.state(0, on_device);
    a.param_scale = 0.999F;
    a.lr = 1e-3F;
    a.one_minus_beta1 = 0.1F;
    a.one_minus_beta2 = 0.01F;
    on_device ? cuda::lion(a, of(Segment{0, shard.n}), 1, nullptr) : active_kernels().lion(a, 0, shard.n);
  });
  compare_all("adagrad", false, [](Shard& shard, bool on_device, uint32_t seed, bool) {
    auto a = shard.args<AdagradArgs>(on_device, seed);
    a.sum = shard.state(0, on_device);
    a.weight_decay = 0.01F;
    a.lr = 0.01F;
    a.eps = 1e-10F;
    on_device ? cuda::adagrad(a, of(Segment{0, shard.n}), 1, nullptr) : active_kernels().adagrad(a, 0, shard.n);
  });
}

TEST_F(CudaTest, RmspropHasTheBitsOfTheCpu) {
  for (const bool centered : {false, true}) {
    for (const bool momentum : {false, true}) {
      const std::string name = std::string("rmsprop") + (centered ? " centered" : "") + (momentum ? " momentum" : "");
      compare_all(name.c_str(), centered, [=](Shard& shard, bool on_device, uint32_t seed, bool) {
        auto a = shard.args<RmspropArgs>(on_device, seed);
        a.square_avg = shard.state(0, on_device);
        if (centered) {
          a.grad_avg = shard.state(1, on_device);
        }
        if (momentum) {
          a.momentum_buffer = shard.state(2, on_device);
        }
        a.weight_decay = 0.01F;
        a.lr = 0.01F;
        a.alpha = 0.9F;
        a.one_minus_alpha = 0.1F;
        a.momentum = 0.8F;
        a.eps = 1e-8F;
        on_device ? cuda::rmsprop(a, of(Segment{0, shard.n}), 1, nullptr) : active_kernels().rmsprop(a, 0, shard.n);
      });
    }
  }
}

/// A step with its numbers in device memory, and others by value.
template <class Args, class Kernel>
void expect_row_counts(const char* name, const Args& (*args_of)(Args&, Shard&, bool), const Kernel& on_device,
                       void (*KernelSet::*on_cpu)(const Args&, int64_t, int64_t)) {
  for (const Element state : {Element::f32, Element::bf16, Element::u8}) {
    Shard shard(1000, {state, Element::bf16, Element::bf16});
    Array rows{std::vector<StepScalars>{StepScalars(), kRow}};
    Args by_value = shard.args<Args>(false, 1);
    args_of(by_value, shard, false);
    set_scalars(by_value, kRow);
    (active_kernels().*on_cpu)(by_value, 0, shard.n);
    Args by_row = shard.args<Args>(true, 1);
    args_of(by_row, shard, true);
    by_row.step_scalars = rows.get<StepScalars>(true); // its row is the second
    on_device(by_row, of(Segment{0, shard.n, 0, 1}), 1, nullptr);
    EXPECT_TRUE(shard.same()) << name << ", states " << static_cast<int>(state);
  }
}

TEST_F(CudaTest, NumbersOfAStepInMemoryHaveTheBitsOfThoseByValue) {
  expect_row_counts<AdamArgs>(
      "adam",
      [](AdamArgs& a, Shard& shard, bool on_device) -> const AdamArgs& {
        a.exp_avg = shard.state(0, on_device);
        a.exp_avg_sq = shard.state(1, on_device);
        a.weight_decay = 0.3F; // chooses the kernel
        a.eps = 1e-8F;
        return a;
      },
      cuda::adam, &KernelSet::adam);
  expect_row_counts<SgdArgs>(
      "sgd",
      [](SgdArgs& a, Shard& shard, bool on_device) -> const SgdArgs& {
        a.momentum_buffer = shard.state(0, on_device);
        a.momentum = 0.9F;
        return a;
      },
      cuda::sgd, &KernelSet::sgd);
  expect_row_counts<LionArgs>(
      "lion",
      [](LionArgs& a, Shard& shard, bool on_device) -> const LionArgs& {
        a.exp_avg = shard.state(0, on_device);
        return a;
      },
      cuda::lion, &KernelSet::lion);
  expect_row_counts<AdagradArgs>(
      "adagrad",
      [](AdagradArgs& a, Shard& shard, bool on_device) -> const AdagradArgs& {
        a.sum = shard.state(0, on_device);
        a.eps = 1e-8F;
        return a;
      },
      cuda::adagrad, &KernelSet::adagrad);
  expect_row_counts<RmspropArgs>(
      "rmsprop",
      [](RmspropArgs& a, Shard& shard, bool on_device) -> const RmspropArgs& {
        a.square_avg = shard.state(0, on_device);
        a.momentum_buffer = shard.state(2, on_device);
        a.alpha = 0.9F;
        a.one_minus_alpha = 0.1F;
        a.momentum = 0.8F;
        a.eps = 1e-8F;
        return a;
      },
      cuda::rmsprop, &KernelSet::rmsprop);
}

TEST_F(CudaTest, EightBitStatesAreDecodedAndEncodedAsOnTheCpu) {
  for (const int64_t n : {int64_t{1}, int64_t{255}, int64_t{256}, int64_t{257}, kLarge}) {
    for (const bool is_signed : {true, false}) {
      Shard shard(n, {Element::u8});
      Array values{Shard::random(n, 9)};
      if (!is_signed) {
        for (int64_t i = 0; i < n; ++i) {
          values.get<float>(false)[i] = std::fabs(values.get<float>(false)[i]);
        }
        ASSERT_EQ(
            cudaMemcpy(values.get<char>(true), values.get<char>(false), n * sizeof(float), cudaMemcpyHostToDevice),
            cudaSuccess);
      }
      active_kernels().encode_state(shard.state(0, false), is_signed, 0, n, values.get<float>(false), kToNearest);
      cuda::encode_state(shard.state(0, true), is_signed, n, values.get<float>(true), nullptr);
      active_kernels().decode_state(shard.state(0, false), is_signed, 0, n, shard.param.get<float>(false));
      cuda::decode_state(shard.state(0, true), is_signed, n, shard.param.get<float>(true), nullptr);
      EXPECT_TRUE(shard.same()) << n << ' ' << is_signed;
    }
  }
}

std::vector<double> doubles_of(Array& array, size_t count) {
  std::vector<double> found(count);
  EXPECT_EQ(cudaMemcpy(found.data(), array.get<char>(true), count * sizeof(double), cudaMemcpyDeviceToHost),
            cudaSuccess);
  return found;
}

TEST_F(CudaTest, NormsAreThoseOfTheCpu) {
  for (const Element type : {Element::f32, Element::bf16, Element::f16}) {
    for (const int64_t n :
         {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{256}, int64_t{257}, kLarge, 1024 * kStateBlock + 77}) {
      if (n > kLarge && type != Element::f32) {
        continue; // once is enough
      }
      Shard shard(std::max<int64_t>(n, 1), {Element::f32, type});
      Array partials{std::vector<double>(cuda::kPartials, std::nan(""))};
      Array sum{std::vector<double>(1, 3.0)};
      const double expected = 3.0 + active_kernels().squared_norm(shard.grad.get<char>(false), type, n);
      for (int time = 0; time < 2; ++time) {
        sum.get<double>(false)[0] = 3.0; // what is there is added to
        ASSERT_EQ(cudaMemcpy(sum.get<char>(true), sum.get<char>(false), sizeof(double), cudaMemcpyHostToDevice),
                  cudaSuccess);
        cuda::squared_norm(shard.grad.get<char>(true), type, n, partials.get<double>(true), sum.get<double>(true),
                           nullptr);
        EXPECT_NEAR(doubles_of(sum, 1)[0], expected, 1e-13 * expected) << n;
      }
    }
  }
}

/// Both phases, with the parameter's step within the limits, below and above them, and of a parameter that is 0.
TEST_F(CudaTest, LambHasTheBitsOfTheCpu) {
  struct Limits {
    float min, max, param;
  };
  for (const Element state : {Element::f32, Element::bf16}) {
    for (const int64_t n : {int64_t{1}, int64_t{256}, int64_t{257}, kLarge}) {
      for (const Limits limits :
           {Limits{1e-9F, 1e9F, 1}, Limits{1e6F, 1e9F, 1}, Limits{1e-9F, 1e-6F, 1}, Limits{1e-9F, 1e-6F, 0}}) {
        for (const bool inside_root : {false, true}) {
          if (n == kLarge && (inside_root || limits.max < 1)) {
            continue; // the smaller ones say it sooner
          }
          Shard shard(n, {state, Element::bf16, Element::bf16});
          for (int64_t i = 0; i < n; ++i) {
            shard.param.get<float>(false)[i] *= limits.param;
          }
          ASSERT_EQ(cudaMemcpy(shard.param.get<char>(true), shard.param.get<char>(false), n * sizeof(float),
                               cudaMemcpyHostToDevice),
                    cudaSuccess);
          StepScalars of_step = kRow;
          of_step.weight_decay = 0.01F;
          of_step.seed = 99;
          of_step.lr_times_correction = 0.01;
          Array row{std::vector<StepScalars>{of_step}};
          const auto args = [&](bool on_device) {
            auto a = shard.args<LambArgs>(on_device, 99);
            a.exp_avg = shard.state(0, on_device);
            a.exp_avg_sq = shard.state(1, on_device);
            a.weight_decay = 0.01F;
            a.one_minus_beta1 = 0.1F;
            a.beta2 = 0.95F;
            a.one_minus_beta2 = 0.05F;
            a.eps = 1e-6F;
            a.eps_inside_root = inside_root;
            if (on_device && n == 257) { // and others by value
              a.step_scalars = row.get<StepScalars>(true);
              a.beta2 = a.weight_decay = a.one_minus_beta1 = a.one_minus_beta2 = 7;
            }
            return a;
          };
          Array partials{std::vector<double>(cuda::kPartials, std::nan(""))};
          Array sums{std::vector<double>(2)};
          const LambSums expected = active_kernels().lamb_moments(args(false), 0, n);
          cuda::lamb_moments(args(true), of(Segment{0, n}), 1, partials.get<double>(true), sums.get<double>(true),
                             nullptr);
          const std::vector<double> found = doubles_of(sums, 2);
          EXPECT_NEAR(found[0], expected.param, 1e-12 * expected.param) << n;
          EXPECT_NEAR(found[1], expected.update, 1e-12 * expected.update) << n;

          const LambScale scale{n == 257 ? 5 : 0.01, limits.min, limits.max};
          LambArgs apply = args(false);
          const double ratio = limits.param == 0 ? 1
                                                 : std::clamp(std::sqrt(found[0]) / std::sqrt(found[1]),
                                                              scale.min_coeff, scale.max_coeff);
          apply.step_size = static_cast<float>(0.01 * ratio);
          active_kernels().lamb_apply(apply, 0, n);
          cuda::lamb_apply(args(true), of(Segment{0, n}), 1, sums.get<double>(true), scale, nullptr);
          EXPECT_TRUE(shard.same()) << n << " elements, ratio " << ratio;
        }
      }
    }
  }
}

} // namespace
} // namespace trireme::kernels
