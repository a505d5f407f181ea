// One launch steps many parameters, each with its numbers and its 8-bit blocks: the bits of the CPU's kernels.
#include "device_arrays.h"

#include <trireme/kernels/cuda/cuda_kernels.h>
#include <trireme/kernels/kernels.h>

namespace trireme::kernels {
namespace {

constexpr int kRows = 11; // more than one launch takes

/// Odd sizes with gaps; more than one launch takes.
std::vector<Segment> many_segments(int64_t& n, int64_t& blocks) {
  std::vector<Segment> segments;
  n = blocks = 0;
  for (int64_t i = 0; i < 130; ++i) {
    const int64_t count = i % 17 == 0 ? 5000 : i * 7 % 300; // some have none
    segments.push_back({n, n + count, i, i * 5 % (i < 60 ? 3 : kRows), blocks});
    blocks += (count + kStateBlock - 1) / kStateBlock;
    n += count + i % 5;
  }
  return segments;
}

std::vector<StepScalars> rows_of_step() {
  std::vector<StepScalars> rows;
  for (int i = 0; i < kRows; ++i) {
    const auto x = static_cast<float>(i + 1);
    StepScalars& row = rows.emplace_back();
    row.weight_decay = i % 2 == 0 ? 0 : 0.01F * x;
    row.param_scale = 1 - 0.001F * x;
    row.step_size = 0.002F * x;
    row.root_scale = 1 + 0.1F * x;
    row.one_minus_beta1 = 0.1F;
    row.beta2 = 0.95F;
    row.one_minus_beta2 = 0.05F;
    row.seed = 77;
    row.lr_times_correction = 0.003 * (i + 1);
  }
  return rows;
}

struct Segmented {
  explicit Segmented(Element state)
      : segments(many_segments(n, blocks)), shard(n, {state, Element::bf16, Element::bf16}) {
    for (auto& scales : shard.scales) {
      scales = std::make_unique<Array>(std::vector<float>(blocks));
    }
  }
  template <class Args>
  Args args(bool on_device, bool rows_on_device) {
    Args a = shard.args<Args>(on_device, 1);
    if (on_device) {
      (rows_on_device ? a.step_scalars : a.host_rows) = rows.get<StepScalars>(rows_on_device);
    }
    return a;
  }
  /// The CPU's kernel, one segment after another.
  template <class Args, class Kernel>
  void each_on_cpu(const Args& args, const Kernel& kernel) {
    for (const Segment& segment : segments) {
      const Args own = args_of(args, segment, rows.get<StepScalars>(false) + segment.row);
      kernel(own, segment);
    }
  }

  int64_t n = 0, blocks = 0;
  std::vector<Segment> segments;
  Shard shard;
  Array rows{rows_of_step()};
};

template <class Args, class SetStates, class Kernel>
void expect_bits_of_cpu(const char* name, const SetStates& set_states, const Kernel& on_device,
                        void (*KernelSet::*on_cpu)(const Args&, int64_t, int64_t)) {
  for (const Element state : {Element::f32, Element::bf16, Element::u8}) {
    for (const bool rows_on_device : {false, true}) {
      Segmented all(state);
      Args a = all.args<Args>(false, false);
      set_states(a, all.shard, false);
      for (int step = 0; step < 2; ++step) {
        all.each_on_cpu(a, [&](const Args& own, const Segment& segment) {
          (active_kernels().*on_cpu)(own, 0, segment.end - segment.begin);
        });
        Args b = all.args<Args>(true, rows_on_device);
        set_states(b, all.shard, true);
        on_device(b, all.segments.data(), std::ssize(all.segments), nullptr);
      }
      EXPECT_TRUE(all.shard.same()) << name << ", states " << static_cast<int>(state) << ' ' << rows_on_device;
    }
  }
}

bool has_device() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

TEST(CudaSegmentsTest, ManyParametersInALaunchHaveTheBitsOfTheCpu) {
  if (!has_device()) {
    GTEST_SKIP() << "no CUDA device";
  }
  const auto adam = [](AdamArgs& a, Shard& shard, bool on_device) {
    a.exp_avg = shard.state(0, on_device);
    a.exp_avg_sq = shard.state(1, on_device);
    a.weight_decay = 1; // some rows have one
    a.eps = 1e-8F;
  };
  expect_bits_of_cpu<AdamArgs>("adam", adam, cuda::adam, &KernelSet::adam);
  const auto sgd = [](SgdArgs& a, Shard& shard, bool on_device) {
    a.momentum_buffer = shard.state(0, on_device);
    a.momentum = 0.9F;
  };
  expect_bits_of_cpu<SgdArgs>("sgd", sgd, cuda::sgd, &KernelSet::sgd);
  const auto lion = [](LionArgs& a, Shard& shard, bool on_device) { a.exp_avg = shard.state(0, on_device); };
  expect_bits_of_cpu<LionArgs>("lion", lion, cuda::lion, &KernelSet::lion);
  const auto adagrad = [](AdagradArgs& a, Shard& shard, bool on_device) {
    a.sum = shard.state(0, on_device);
    a.eps = 1e-8F;
  };
  expect_bits_of_cpu<AdagradArgs>("adagrad", adagrad, cuda::adagrad, &KernelSet::adagrad);
  const auto rmsprop = [](RmspropArgs& a, Shard& shard, bool on_device) {
    a.square_avg = shard.state(0, on_device);
    a.momentum_buffer = shard.state(1, on_device);
    a.alpha = 0.9F;
    a.one_minus_alpha = 0.1F;
    a.momentum = 0.8F;
    a.eps = 1e-8F;
  };
  expect_bits_of_cpu<RmspropArgs>("rmsprop", rmsprop, cuda::rmsprop, &KernelSet::rmsprop);
}

TEST(CudaSegmentsTest, LambStepsManyParametersByTheirNorms) {
  if (!has_device()) {
    GTEST_SKIP() << "no CUDA device";
  }
  for (const Element state : {Element::f32, Element::bf16}) {
    for (const bool rows_on_device : {false, true}) {
      Segmented all(state);
      const auto args = [&](bool on_device) {
        LambArgs a = all.args<LambArgs>(on_device, rows_on_device);
        a.exp_avg = all.shard.state(0, on_device);
        a.exp_avg_sq = all.shard.state(1, on_device);
        a.eps = 1e-6F;
        return a;
      };
      const int64_t count = std::ssize(all.segments);
      Array partials{std::vector<double>(cuda::kPartials, std::nan(""))};
      Array sums{std::vector<double>(2 * all.segments.size())};
      cuda::lamb_moments(args(true), all.segments.data(), count, partials.get<double>(true), sums.get<double>(true),
                         nullptr);
      std::vector<double> found(2 * all.segments.size());
      ASSERT_EQ(cudaMemcpy(found.data(), sums.get<char>(true), 8 * found.size(), cudaMemcpyDeviceToHost), cudaSuccess);
      const LambScale scale{1e9, 1e-9, 1e9};
      all.each_on_cpu(args(false), [&](LambArgs own, const Segment& segment) {
        const int64_t elements = segment.end - segment.begin;
        const LambSums expected = active_kernels().lamb_moments(own, 0, elements);
        const double* const norms = &found[2 * segment.parameter];
        EXPECT_NEAR(norms[0], expected.param, 1e-12 * expected.param) << segment.parameter;
        EXPECT_NEAR(norms[1], expected.update, 1e-12 * expected.update) << segment.parameter;
        const double ratio = norms[0] > 0 && norms[1] > 0 ? std::clamp(std::sqrt(norms[0]) / std::sqrt(norms[1]),
                                                                       scale.min_coeff, scale.max_coeff)
                                                          : 1;
        own.step_size = static_cast<float>(0.003 * static_cast<double>(segment.row + 1) * ratio);
        active_kernels().lamb_apply(own, 0, elements);
      });
      cuda::lamb_apply(args(true), all.segments.data(), count, sums.get<double>(true), scale, nullptr);
      EXPECT_TRUE(all.shard.same()) << static_cast<int>(state) << ' ' << rows_on_device;
    }
  }
}

} // namespace
} // namespace trireme::kernels
