// The CUDA kernels give the bits of the CPU's. Skipped where there is no device.

#include <trireme/kernels/cuda/cuda_kernels.h>
#include <trireme/kernels/kernels.h>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace trireme::kernels {
namespace {

constexpr int64_t kSize = 3 * 1024 + 77;

/// Bytes on the device with a copy here.
class Array {
 public:
  template <class T>
  explicit Array(const std::vector<T>& values) : host_(values.size() * sizeof(T)) {
    std::memcpy(host_.data(), values.data(), host_.size());
    EXPECT_EQ(cudaMalloc(&device_, host_.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Array() {
    cudaFree(device_);
  }
  Array(const Array&) = delete;

  template <class T>
  T* get(bool on_device) {
    return reinterpret_cast<T*>(on_device ? device_ : host_.data());
  }
  bool same() {
    std::vector<char> found(host_.size());
    EXPECT_EQ(cudaMemcpy(found.data(), device_, found.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    return found == host_;
  }

 private:
  std::vector<char> host_;
  void* device_ = nullptr;
};

struct Shard {
  explicit Shard(Element state_type) : state_type(state_type) {
    states[0] = std::make_unique<Array>(std::vector<char>(kSize * 4));
    states[1] = std::make_unique<Array>(std::vector<char>(kSize * 4));
  }
  static std::vector<float> random() {
    std::mt19937 generator(7);
    std::normal_distribution<float> normal;
    std::vector<float> values(kSize);
    for (float& x : values) {
      x = normal(generator) * std::exp2(static_cast<float>(generator() % 12) - 8.0F);
    }
    return values;
  }
  template <class Args>
  Args args(bool on_device) {
    Args args;
    args.param = param.get<float>(on_device);
    args.grad = grad.get<float>(on_device);
    args.param_copy = copy.get<uint16_t>(on_device);
    args.grad_scale = 0.37F;
    args.seed = 12345;
    return args;
  }
  StateArray state(int i, bool on_device) {
    return {states[i]->get<char>(on_device), state_type, scales[i].get<float>(on_device)};
  }
  bool same() {
    return param.same() && copy.same() && states[0]->same() && states[1]->same() && scales[0].same() && scales[1].same();
  }

  Element state_type;
  Array param{random()}, grad{random()}, copy{std::vector<uint16_t>(kSize)};
  std::unique_ptr<Array> states[2];
  Array scales[2] = {Array(std::vector<float>(kSize / kStateBlock + 1)), Array(std::vector<float>(kSize / kStateBlock + 1))};
};

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
  }
};

TEST_F(CudaTest, AdamHasTheBitsOfTheCpu) {
  for (const Element type : {Element::f32, Element::bf16, Element::u8}) {
    Shard shard(type);
    const auto args = [&](bool on_device) {
      auto a = shard.args<AdamArgs>(on_device);
      a.exp_avg = shard.state(0, on_device);
      a.exp_avg_sq = shard.state(1, on_device);
      a.param_scale = 0.9987F;
      a.one_minus_beta1 = 0.1F;
      a.beta2 = 0.95F;
      a.one_minus_beta2 = 0.05F;
      a.step_size = 3e-3F;
      a.root_scale = 1.7F;
      a.eps = 1e-8F;
      return a;
    };
    for (int step = 0; step < 5; ++step) {
      active_kernels().adam(args(false), 0, kSize);
      cuda::adam(args(true), 0, kSize, nullptr);
    }
    EXPECT_TRUE(shard.same()) << static_cast<int>(type);
  }
}

TEST_F(CudaTest, LionAndMomentumHaveTheBitsOfTheCpu) {
  for (const Element type : {Element::f32, Element::bf16, Element::u8}) {
    Shard shard(type);
    for (int step = 0; step < 5; ++step) {
      for (const bool on_device : {false, true}) {
        auto lion = shard.args<LionArgs>(on_device);
        lion.exp_avg = shard.state(0, on_device);
        lion.lr = 1e-3F;
        lion.one_minus_beta1 = 0.1F;
        lion.one_minus_beta2 = 0.01F;
        auto sgd = shard.args<SgdArgs>(on_device);
        sgd.momentum_buffer = shard.state(0, on_device);
        sgd.lr = 0.1F;
        sgd.momentum = 0.9F;
        if (on_device) {
          cuda::lion(lion, 0, kSize, nullptr);
          cuda::sgd(sgd, 0, kSize, nullptr);
        } else {
          active_kernels().lion(lion, 0, kSize);
          active_kernels().sgd(sgd, 0, kSize);
        }
      }
    }
    EXPECT_TRUE(shard.same()) << static_cast<int>(type);
  }
}

TEST_F(CudaTest, NormsAreThoseOfTheCpu) {
  Shard shard(Element::f32);
  Array partials{std::vector<double>(cuda::kPartials)};
  Array sums{std::vector<double>(3)};
  const auto args = [&](bool on_device) {
    auto a = shard.args<LambArgs>(on_device);
    a.exp_avg = shard.state(0, on_device);
    a.exp_avg_sq = shard.state(1, on_device);
    a.weight_decay = 0.01F;
    a.one_minus_beta1 = 0.1F;
    a.beta2 = 0.95F;
    a.one_minus_beta2 = 0.05F;
    a.eps = 1e-6F;
    a.step_size = 0.01F;
    return a;
  };
  const double norm = active_kernels().squared_norm(shard.grad.get<float>(false), Element::f32, kSize);
  const LambSums expected = active_kernels().lamb_moments(args(false), 0, kSize);
  double* const on_device = sums.get<double>(true);
  cuda::squared_norm(shard.grad.get<float>(true), Element::f32, kSize, partials.get<double>(true), on_device + 2, nullptr);
  cuda::lamb_moments(args(true), 0, kSize, partials.get<double>(true), on_device, nullptr);
  double found[3];
  ASSERT_EQ(cudaMemcpy(found, on_device, sizeof(found), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_NEAR(found[0], expected.param, 1e-12 * expected.param);
  EXPECT_NEAR(found[1], expected.update, 1e-12 * expected.update);
  EXPECT_NEAR(found[2], norm, 1e-12 * norm);

  LambArgs apply = args(false);
  apply.step_size = static_cast<float>(apply.step_size * std::sqrt(found[0]) / std::sqrt(found[1]));
  active_kernels().lamb_apply(apply, 0, kSize);
  cuda::lamb_apply(args(true), 0, kSize, on_device, 0.01F, 10, nullptr);
  EXPECT_TRUE(shard.same());
}

} // namespace
} // namespace trireme::kernels
