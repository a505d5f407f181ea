// Arrays of an optimizer's step on a CUDA device and on the host.
#pragma once

#include <trireme/kernels/optimizer_args.h>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace trireme::kernels {
namespace {

/// Until the end of the expression.
inline const Segment* of(Segment&& segment) {
  return &segment;
}

/// Bytes on the device with a copy here.
class Array {
 public:
  template <class T>
  explicit Array(const std::vector<T>& values) : host_(values.size() * sizeof(T)) {
    std::memcpy(host_.data(), values.data(), host_.size());
    EXPECT_EQ(cudaMalloc(&device_, host_.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Array() { cudaFree(device_); }
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

/// Types of a shard's arrays.
struct Types {
  Element state = Element::f32;
  Element grad = Element::f32;
  Element copy = Element::f32; ///< f32: no copy
};

Array gradients(const std::vector<float>& values, Element type) {
  if (type == Element::f32) {
    return Array(values);
  }
  std::vector<uint16_t> bits;
  for (const float x : values) {
    uint32_t wide;
    std::memcpy(&wide, &x, sizeof(wide));
    // In fp16: sign, an exponent that is at hand, the same fraction.
    const uint32_t exponent = std::clamp<int>(static_cast<int>(wide >> 23 & 255) - 112, 0, 30);
    bits.push_back(static_cast<uint16_t>(
        type == Element::bf16 ? wide >> 16 : (wide >> 16 & 0x8000) | exponent << 10 | (wide >> 13 & 0x3ff)));
  }
  return Array(bits);
}

struct Shard {
  Shard(int64_t n, const Types& types)
      : n(n),
        types(types),
        param{random(n, 7)},
        grad(gradients(random(n, 8), types.grad)),
        copy{std::vector<uint16_t>(n, 0xabcd)} {
    for (auto& state : states) {
      state = std::make_unique<Array>(std::vector<char>(n * 4));
    }
    for (auto& scale : scales) {
      scale = std::make_unique<Array>(std::vector<float>(n / kStateBlock + 1));
    }
  }
  static std::vector<float> random(int64_t n, uint32_t seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& x : values) {
      x = normal(generator) * std::exp2(static_cast<float>(generator() % 12) - 8.0F);
    }
    return values;
  }
  template <class Args>
  Args args(bool on_device, uint32_t seed) {
    Args args;
    args.param = param.get<float>(on_device);
    args.grad = grad.get<char>(on_device);
    args.grad_type = types.grad;
    if (types.copy != Element::f32) {
      args.param_copy = copy.get<uint16_t>(on_device);
      args.copy_type = types.copy;
    }
    args.grad_scale = 0.37F;
    if (on_device && (skips || types.grad != Element::f32)) {
      args.grad_scale = 1e9F;
      args.device_grad_scale = factors.get<float>(true) + (skips ? 1 : 0);
    }
    args.seed = seed;
    return args;
  }
  StateArray state(int i, bool on_device) {
    return {states[i]->get<char>(on_device), types.state, scales[i]->get<float>(on_device)};
  }
  bool same() {
    bool all = param.same() && copy.same();
    for (int i = 0; i < 3; ++i) {
      all = all && states[i]->same() && scales[i]->same();
    }
    return all;
  }

  int64_t n;
  Types types;
  bool skips = false; // the device is given NaN for a factor
  Array param, grad, copy;
  Array factors{std::vector<float>{0.37F, std::nanf("")}};
  std::unique_ptr<Array> states[3], scales[3];
};

} // namespace
} // namespace trireme::kernels
