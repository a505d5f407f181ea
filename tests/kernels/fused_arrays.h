#pragma once

#include <trireme/kernels/fused_kernels.h>

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

// Arrays for the kernels of fused_kernels.h, and what compares instruction sets.
namespace trireme::kernels {

using Bytes = std::vector<unsigned char>;

inline uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_bf16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

/// An array of fp32 or bf16 that starts off any alignment.
class Array {
 public:
  Array(Element element, int64_t n) : element_(element), bytes_(static_cast<size_t>(n) * width() + 4) {}
  Array(Element element, const std::vector<float>& values) : Array(element, static_cast<int64_t>(values.size())) {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t half = to_bf16(values[i]);
      std::memcpy(data() + i * width(), element_ == Element::bf16 ? static_cast<const void*>(&half) : &values[i],
                  width());
    }
  }
  unsigned char* data() { return bytes_.data() + 4; }
  float at(size_t i) {
    uint16_t half = 0;
    float x = 0;
    if (element_ == Element::bf16) {
      std::memcpy(&half, data() + i * 2, 2);
      return from_bf16(half);
    }
    std::memcpy(&x, data() + i * 4, 4);
    return x;
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  size_t width() const { return element_ == Element::bf16 ? 2 : 4; }
  Element element_;
  Bytes bytes_;
};

inline std::vector<float> random_values(int64_t n, unsigned seed, float spread = 2) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

inline void append(Bytes& to, const Bytes& more) {
  to.insert(to.end(), more.begin(), more.end());
}

inline void append(Bytes& to, const std::vector<float>& more) {
  const auto* first = reinterpret_cast<const unsigned char*>(more.data());
  to.insert(to.end(), first, first + more.size() * sizeof(float));
}

struct Shape {
  Element element;
  int64_t rows, columns;
};

/// What an earlier call left there must not matter.
inline std::vector<float> workspace(const FusedKernelSet& set, const AttentionArgs& args, bool backward) {
  return std::vector<float>(static_cast<size_t>(set.attention_workspace(args, backward)),
                            std::numeric_limits<float>::quiet_NaN());
}
inline void run_forward(const FusedKernelSet& set, const AttentionArgs& args, int64_t tasks) {
  set.attention(args, 0, tasks, workspace(set, args, false).data());
}
inline void run_backward(const FusedKernelSet& set, const AttentionArgs& args, int64_t tasks) {
  set.attention_backward(args, 0, tasks, workspace(set, args, true).data());
}

class FusedKernelsTest : public testing::TestWithParam<Element> {
 protected:
  template <class F>
  void expect_same_bits(const F& run) {
    const Bytes expected = run(fused_kernel_set(Simd::scalar));
    for (Simd simd : {Simd::avx2, Simd::avx512}) {
      if (supported(simd)) {
        EXPECT_TRUE(run(fused_kernel_set(simd)) == expected) << name(simd);
      }
    }
  }
};

} // namespace trireme::kernels
