// The row kernels for CUDA give what the CPU's give, but for the order of sums and the last digits of exp(): on a CUDA
// device (kernels_cuda_test; skipped where there is none), and compiled for the CPU (kernels_cuda_on_cpu_test).

#include "fused_arrays.h"

#include <trireme/kernels/cuda/fused_cuda_kernels.h>

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trireme::kernels {
namespace {

/// Floats as elements of a type, here and on the device. `offset` elements before them keep them off multiples of 16
/// bytes.
class Mirror {
 public:
  Mirror(Element element, std::vector<float> values, int64_t offset) : element_(element), offset_(offset) {
    values.insert(values.begin(), static_cast<size_t>(offset), 0);
    bytes_.resize(values.size() * width());
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t half = to_bf16(values[i]);
      std::memcpy(bytes_.data() + i * width(), element == Element::bf16 ? static_cast<const void*>(&half) : &values[i],
                  width());
    }
    EXPECT_EQ(cudaMalloc(&device_, bytes_.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(device_, bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Mirror() { cudaFree(device_); }
  Mirror(const Mirror&) = delete;

  template <class T = void>
  T* at(bool on_device) {
    return reinterpret_cast<T*>((on_device ? static_cast<unsigned char*>(device_) : bytes_.data()) +
                                static_cast<size_t>(offset_) * width());
  }
  std::vector<float> read(bool on_device) {
    Bytes bytes = bytes_;
    if (on_device) {
      EXPECT_EQ(cudaMemcpy(bytes.data(), device_, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    }
    std::vector<float> values;
    for (size_t i = static_cast<size_t>(offset_); i < bytes.size() / width(); ++i) {
      uint16_t half = 0;
      float value = 0;
      if (element_ == Element::bf16) {
        std::memcpy(&half, bytes.data() + i * 2, 2);
        value = from_bf16(half);
      } else {
        std::memcpy(&value, bytes.data() + i * 4, 4);
      }
      values.push_back(value);
    }
    return values;
  }
  void expect_same(const char* name, double allowed) { test_same(name, read(false), read(true), allowed); }

  /// `allowed`: the largest difference, as a part of the largest value.
  static void test_same(const char* name, const std::vector<float>& cpu, const std::vector<float>& cuda,
                        double allowed) {
    double largest = 0, difference = 0;
    for (size_t i = 0; i < cpu.size(); ++i) {
      ASSERT_EQ(std::isfinite(cpu[i]), std::isfinite(cuda[i])) << name << ", element " << i;
      if (std::isfinite(cpu[i])) {
        largest = std::max<double>(largest, std::fabs(cpu[i]));
        difference = std::max<double>(difference, std::fabs(cpu[i] - cuda[i]));
      }
    }
    EXPECT_LE(difference, allowed * std::max(largest, 1e-3)) << name;
  }

 private:
  size_t width() const { return element_ == Element::bf16 ? 2 : 4; }
  Element element_;
  int64_t offset_;
  Bytes bytes_;
  void* device_ = nullptr;
};

/// A weight or its gradient: fp32 for the CPU's kernels, of any type on the device, with the same values.
class Parameter {
 public:
  Parameter(Element type, const std::vector<float>& values, int64_t offset)
      : there_(type, values, offset), here_(Element::f32, there_.read(false), offset), type_(type) {}
  void* at(bool on_device) { return on_device ? there_.at(true) : here_.at(false); }
  void expect_same(const char* name, double allowed) {
    Mirror::test_same(name, here_.read(false), there_.read(true), type_ == Element::bf16 ? 4e-3 + allowed : allowed);
  }

 private:
  Mirror there_, here_;
  Element type_;
};

struct CudaShape {
  Element element, parameters;
  int64_t rows, columns, offset;
};

/// Widths about those of a warp, of 16 bytes, of what a thread holds, and of what it does not.
std::vector<CudaShape> shapes() {
  std::vector<CudaShape> all;
  for (const auto& [element, parameters] :
       {std::pair{Element::f32, Element::f32}, {Element::bf16, Element::f32}, {Element::bf16, Element::bf16}}) {
    for (const auto& [rows, columns, offset] : {std::tuple<int64_t, int64_t, int64_t>{3, 1, 0},
                                                {2, 33, 0},
                                                {5, 64, 0},
                                                {5, 64, 1},
                                                {300, 40, 0},
                                                {2, 768, 0},
                                                {2, 3072, 0},
                                                {2, 3072, 1},
                                                {1, 20000, 0},
                                                {2, 17408, 0}}) {
      all.push_back({element, parameters, rows, columns, offset});
    }
  }
  return all;
}

class FusedCudaTest : public testing::TestWithParam<CudaShape> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
  }
  int64_t count() const { return shape.rows * shape.columns; }
  Mirror elements(unsigned seed, float spread = 2) {
    return Mirror(shape.element, random_values(count(), seed, spread), shape.offset);
  }
  Mirror empty() { return Mirror(shape.element, std::vector<float>(static_cast<size_t>(count())), shape.offset); }
  Mirror floats(int64_t n, unsigned seed) { return Mirror(Element::f32, random_values(n, seed), shape.offset); }
  Parameter weights(unsigned seed) { return {shape.parameters, random_values(shape.columns, seed), shape.offset}; }
  /// A sum over rows, to which the CPU's kernels add. The others overwrite it.
  Parameter sums() { return {shape.parameters, std::vector<float>(static_cast<size_t>(shape.columns)), shape.offset}; }
  float* partials() {
    room_ = std::make_unique<Mirror>(
        Element::f32, std::vector<float>(static_cast<size_t>(cuda::column_partials(shape.columns, 3)), std::nanf("")),
        0);
    return room_->at<float>(true);
  }
  double allowed() const { return shape.element == Element::bf16 ? 8e-3 : 1e-5; }

  static const FusedKernelSet& cpu() { return active_fused_kernels(); }

  CudaShape shape = GetParam();

 private:
  std::unique_ptr<Mirror> room_;
};

INSTANTIATE_TEST_SUITE_P(Shapes, FusedCudaTest, testing::ValuesIn(shapes()), [](const auto& info) {
  return (info.param.parameters == Element::bf16 ? "bf16_"
          : info.param.element == Element::bf16  ? "mixed_"
                                                 : "f32_") +
         std::to_string(info.param.rows) + "x" + std::to_string(info.param.columns) +
         (info.param.offset > 0 ? "_unaligned" : "");
});

TEST_P(FusedCudaTest, Gelu) {
  for (const Gelu form : {Gelu::tanh, Gelu::erf}) {
    Mirror x = elements(1, 4), dy = elements(2), y = empty(), dx = empty();
    Parameter bias = weights(3), dbias = sums();
    const auto args = [&](bool device) {
      GeluArgs a;
      a.x = x.at(device);
      a.bias = bias.at(device);
      a.y = y.at(device);
      a.dy = dy.at(device);
      a.dx = dx.at(device);
      a.dbias = dbias.at(device);
      a.columns = shape.columns;
      a.element = shape.element;
      a.parameters = shape.parameters;
      a.form = form;
      return a;
    };
    cpu().gelu(args(false), 0, shape.rows);
    cpu().gelu_backward(args(false), 0, shape.rows);
    cuda::gelu(args(true), shape.rows, nullptr);
    cuda::gelu_backward(args(true), shape.rows, partials(), nullptr);
    y.expect_same("y", allowed());
    dx.expect_same("dx", allowed());
    dbias.expect_same("dbias", 1e-4);
  }
}

TEST_P(FusedCudaTest, GatedSilu) {
  Mirror gate = elements(1, 4), up = elements(2), dy = elements(3), y = empty(), dgate = empty(), dup = empty();
  const auto args = [&](bool device) {
    GatedSiluArgs a;
    a.gate = gate.at(device);
    a.up = up.at(device);
    a.y = y.at(device);
    a.dy = dy.at(device);
    a.dgate = dgate.at(device);
    a.dup = dup.at(device);
    a.element = shape.element;
    return a;
  };
  cpu().gated_silu(args(false), 0, count());
  cpu().gated_silu_backward(args(false), 0, count());
  cuda::gated_silu(args(true), count(), nullptr);
  cuda::gated_silu_backward(args(true), count(), nullptr);
  y.expect_same("y", allowed());
  dgate.expect_same("dgate", allowed());
  dup.expect_same("dup", allowed());
}

TEST_P(FusedCudaTest, LayerNorm) {
  for (const bool adds : {false, true}) {
    Mirror x = elements(1), residual = elements(2), h = empty(), y = empty(), dy = elements(3), dh_in = elements(4),
           dh = empty(), mean = floats(shape.rows, 8), rstd = floats(shape.rows, 9);
    Parameter bias = weights(5), weight = weights(6), shift = weights(7), dweight = sums(), dshift = sums(),
              dbias = sums();
    const auto args = [&](bool device) {
      LayerNormArgs a;
      a.x = x.at(device);
      a.residual = adds ? residual.at(device) : nullptr;
      a.bias = adds ? bias.at(device) : nullptr;
      a.h = adds ? h.at(device) : x.at(device);
      a.y = y.at(device);
      a.weight = weight.at(device);
      a.shift = shift.at(device);
      a.mean = mean.at<float>(device);
      a.rstd = rstd.at<float>(device);
      a.dy = dy.at(device);
      a.dh_in = adds ? dh_in.at(device) : nullptr;
      a.dh = dh.at(device);
      a.dweight = dweight.at(device);
      a.dshift = dshift.at(device);
      a.dbias = adds ? dbias.at(device) : nullptr;
      a.columns = shape.columns;
      a.element = shape.element;
      a.parameters = shape.parameters;
      return a;
    };
    cpu().layer_norm(args(false), 0, shape.rows);
    cpu().layer_norm_backward(args(false), 0, shape.rows);
    cuda::layer_norm(args(true), shape.rows, nullptr);
    cuda::layer_norm_backward(args(true), shape.rows, partials(), nullptr);
    h.expect_same("h", 0);
    y.expect_same("y", allowed());
    mean.expect_same("mean", 1e-5);
    rstd.expect_same("rstd", 1e-5);
    if (shape.columns > 1) { // one value is its own mean: what is left is rounding, times 1 / sqrt(eps)
      dh.expect_same("dh", allowed());
      dbias.expect_same("dbias", 1e-4);
      dweight.expect_same("dweight", 1e-5);
    }
    dshift.expect_same("dshift", 1e-5);
  }
}

TEST_P(FusedCudaTest, RmsNorm) {
  for (const bool adds : {false, true}) {
    Mirror x = elements(1), residual = elements(2), h = empty(), y = empty(), dy = elements(3), dh_in = elements(4),
           dh = empty(), rstd = floats(shape.rows, 9);
    Parameter weight = weights(6), dweight = sums();
    const auto args = [&](bool device) {
      RmsNormArgs a;
      a.x = x.at(device);
      a.residual = adds ? residual.at(device) : nullptr;
      a.h = adds ? h.at(device) : x.at(device);
      a.y = y.at(device);
      a.weight = weight.at(device);
      a.rstd = rstd.at<float>(device);
      a.dy = dy.at(device);
      a.dh_in = adds ? dh_in.at(device) : nullptr;
      a.dh = dh.at(device);
      a.dweight = dweight.at(device);
      a.columns = shape.columns;
      a.element = shape.element;
      a.parameters = shape.parameters;
      return a;
    };
    cpu().rms_norm(args(false), 0, shape.rows);
    cpu().rms_norm_backward(args(false), 0, shape.rows);
    cuda::rms_norm(args(true), shape.rows, nullptr);
    cuda::rms_norm_backward(args(true), shape.rows, partials(), nullptr);
    h.expect_same("h", 0);
    y.expect_same("y", allowed());
    rstd.expect_same("rstd", 1e-5);
    dh.expect_same("dh", allowed());
    dweight.expect_same("dweight", 1e-5);
  }
}

TEST_P(FusedCudaTest, CrossEntropy) {
  std::vector<float> logits = random_values(count(), 1, 5);
  if (shape.columns > 40) { // columns that nothing may choose, as those that pad a vocabulary
    for (int64_t row = 0; row < shape.rows; ++row) {
      std::fill_n(logits.begin() + row * shape.columns + shape.columns - 20, 20, -INFINITY);
    }
  }
  Mirror x(shape.element, logits, shape.offset), dx = empty(), lse = floats(shape.rows, 3),
                                                 loss = floats(shape.rows, 4);
  std::vector<int64_t> target;
  for (int64_t row = 0; row < shape.rows; ++row) {
    target.push_back(row % 4 == 1   ? -100
                     : row % 4 == 2 ? CrossEntropyArgs::kElsewhere
                                    : row * 7 % std::max<int64_t>(1, shape.columns - 20));
  }
  void* target_there = nullptr;
  ASSERT_EQ(cudaMalloc(&target_there, target.size() * sizeof(int64_t)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(target_there, target.data(), target.size() * sizeof(int64_t), cudaMemcpyHostToDevice),
            cudaSuccess);
  const auto args = [&](bool device, bool in_place) {
    CrossEntropyArgs a;
    a.logits = x.at(device);
    a.target = device ? static_cast<const int64_t*>(target_there) : target.data();
    a.lse = lse.at<float>(device);
    a.loss = loss.at<float>(device);
    a.dlogits = in_place ? x.at(device) : dx.at(device);
    a.scale = 0.37F;
    a.columns = shape.columns;
    a.element = shape.element;
    return a;
  };
  cpu().cross_entropy(args(false, false), 0, shape.rows);
  cuda::cross_entropy(args(true, false), shape.rows, nullptr);
  lse.expect_same("lse", 1e-6);
  loss.expect_same("loss", 1e-6);
  for (const bool in_place : {false, true}) {
    cpu().cross_entropy_backward(args(false, in_place), 0, shape.rows);
    cuda::cross_entropy_backward(args(true, in_place), shape.rows, nullptr);
    (in_place ? x : dx).expect_same("dlogits", allowed());
  }
  cudaFree(target_there);
}

// A vocabulary that is no multiple of a pack: rows are padded, and what pads them counts for nothing.
TEST_P(FusedCudaTest, CrossEntropyOfPaddedRows) {
  const int64_t stride = shape.columns / 16 * 16 + 16;
  std::vector<float> logits = random_values(shape.rows * stride, 1, 5);
  for (int64_t row = 0; row < shape.rows; ++row) {
    std::fill(logits.begin() + row * stride + shape.columns, logits.begin() + (row + 1) * stride, 1e30F);
  }
  Mirror x(shape.element, logits, shape.offset), lse = floats(shape.rows, 3), loss = floats(shape.rows, 4);
  std::vector<int64_t> target(static_cast<size_t>(shape.rows));
  for (int64_t row = 0; row < shape.rows; ++row) {
    target[static_cast<size_t>(row)] = row == 1 ? -100 : shape.columns - 1;
  }
  void* target_there = nullptr;
  ASSERT_EQ(cudaMalloc(&target_there, target.size() * sizeof(int64_t)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(target_there, target.data(), target.size() * sizeof(int64_t), cudaMemcpyHostToDevice),
            cudaSuccess);
  const auto args = [&](bool device) {
    CrossEntropyArgs a;
    a.logits = a.dlogits = x.at(device);
    a.target = device ? static_cast<const int64_t*>(target_there) : target.data();
    a.lse = lse.at<float>(device);
    a.loss = loss.at<float>(device);
    a.scale = 0.37F;
    a.columns = shape.columns;
    a.element = shape.element;
    a.stride = stride;
    return a;
  };
  cpu().cross_entropy(args(false), 0, shape.rows);
  cuda::cross_entropy(args(true), shape.rows, nullptr);
  lse.expect_same("lse", 1e-6);
  loss.expect_same("loss", 1e-6);
  cpu().cross_entropy_backward(args(false), 0, shape.rows);
  cuda::cross_entropy_backward(args(true), shape.rows, nullptr);
  const auto of_columns = [&](bool device, bool padding) {
    std::vector<float> taken;
    const std::vector<float> all = x.read(device);
    for (int64_t i = 0; i < shape.rows * stride; ++i) {
      if ((i % stride >= shape.columns) == padding) {
        taken.push_back(all[static_cast<size_t>(i)]);
      }
    }
    return taken;
  };
  Mirror::test_same("dlogits", of_columns(false, false), of_columns(true, false), allowed());
  const int64_t pack = shape.offset == 0 ? (shape.element == Element::bf16 ? 8 : 4) : 1;
  const int64_t zeros = (shape.columns + pack - 1) / pack * pack - shape.columns;
  const std::vector<float> padding = of_columns(true, true);
  for (int64_t i = 0; i < std::ssize(padding); ++i) {
    EXPECT_EQ(padding[static_cast<size_t>(i)] == 0, i % (stride - shape.columns) < zeros) << i;
  }
  cudaFree(target_there);
}

TEST_P(FusedCudaTest, SumsAndAdditions) {
  Mirror x = elements(1), residual = elements(2), out = empty();
  Parameter bias = weights(3), sum = sums();
  const auto add = [&](bool device) {
    return AddBiasArgs{x.at(device),  residual.at(device), bias.at(device), out.at(device),
                       shape.columns, shape.element,       shape.parameters};
  };
  const auto column = [&](bool device) {
    return ColumnSumArgs{x.at(device), sum.at(device), shape.columns, shape.element, shape.parameters};
  };
  cpu().add_bias(add(false), 0, shape.rows);
  cpu().column_sum(column(false), 0, shape.rows);
  cuda::add_bias(add(true), shape.rows, nullptr);
  cuda::column_sum(column(true), shape.rows, partials(), nullptr);
  out.expect_same("out", 0);
  sum.expect_same("sum", 1e-5);
}

// The CPU's bits. What is f16 has the bits of bf16, which are other numbers.
TEST_P(FusedCudaTest, Dropout) {
  Mirror x = elements(1), residual = elements(2), y = empty();
  const int64_t seed = 0x123456789abcdef;
  void* seed_there = nullptr;
  ASSERT_EQ(cudaMalloc(&seed_there, sizeof(seed)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(seed_there, &seed, sizeof(seed), cudaMemcpyHostToDevice), cudaSuccess);
  for (const bool adds : {false, true}) {
    for (const double p : {0.3, 1.0}) {
      const auto args = [&](bool device) {
        DropoutArgs a;
        a.x = x.at(device);
        a.residual = adds ? residual.at(device) : nullptr;
        a.y = y.at(device);
        a.seed = device ? static_cast<const int64_t*>(seed_there) : &seed;
        a.element = shape.parameters == Element::bf16 ? Element::f16 : shape.element;
        a.set_probability(p);
        return a;
      };
      dropout_kernel(active_simd())(args(false), 0, count());
      cuda::dropout(args(true), count(), nullptr);
      y.expect_same("y", 0);
    }
  }
  cudaFree(seed_there);
}

TEST_P(FusedCudaTest, Rotary) {
  // [samples, tokens, heads, head size] read as [samples, heads, tokens, head size]
  const int64_t samples = 2, tokens = 5, heads = 3, size = shape.columns > 1000 ? 128 : shape.columns % 8 == 0 ? 16 : 6;
  const int64_t n = samples * tokens * heads * size;
  Mirror x(shape.element, random_values(n, 1), shape.offset),
      y(shape.element, std::vector<float>(static_cast<size_t>(n)), shape.offset), cos = floats(tokens * size / 2, 2),
                                                                                  sin = floats(tokens * size / 2, 3);
  for (const float sign : {1.0F, -1.0F}) {
    const auto args = [&](bool device) {
      RotaryArgs a;
      a.x = x.at(device);
      a.y = y.at(device);
      a.x_at = a.y_at = {tokens * heads * size, size, heads * size};
      a.cos = cos.at<float>(device);
      a.sin = sin.at<float>(device);
      a.sign = sign;
      a.tokens = tokens;
      a.heads = heads;
      a.head_size = size;
      a.element = shape.element;
      return a;
    };
    cpu().rotary(args(false), 0, samples * tokens);
    cuda::rotary(args(true), samples * tokens, nullptr);
    y.expect_same("y", allowed());
  }
}

} // namespace
} // namespace trireme::kernels
