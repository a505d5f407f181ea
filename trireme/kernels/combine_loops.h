#pragma once

#include <trireme/kernels/kernels.h>
#include <trireme/kernels/lanes.h>
#include <trireme/kernels/narrow.h>

#include <type_traits>

// Element-wise sums, maxima and minima of several arrays, and copies that bypass the caches; written once, included by
// each kernels_<simd>.cpp.

namespace trireme::kernels {
namespace {

template <class T>
const T* input(const CombineArgs& args, int index) {
  return static_cast<const T*>(args.in[index]);
}
template <class T>
T* output(const CombineArgs& args, int index) {
  return static_cast<T*>(args.out[index]);
}

/// Registers of F's values from element i on: added in float in the order of the inputs, rounded once.
template <class F, class V, int kBatch>
inline void sum_batch(const CombineArgs& args, int64_t i) {
  using Raw = typename F::Raw;
  V sum[kBatch];
#pragma GCC unroll 8
  for (int k = 0; k < kBatch; ++k) {
    sum[k] = F::load(input<Raw>(args, 0) + i + k * V::kCount);
  }
  for (int index = 1; index < args.inputs; ++index) {
    const Raw* const from = input<Raw>(args, index) + i;
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      sum[k] = sum[k] + F::load(from + k * V::kCount);
    }
  }
  for (int index = 0; index < args.outputs; ++index) {
    Raw* const to = output<Raw>(args, index) + i;
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      F::store(to + k * V::kCount, sum[k]);
    }
  }
}

template <Combine kOp>
inline float choose(float a, float b) {
  const bool take = kOp == Combine::max ? b > a : b < a;
  return take || b != b ? b : a;
}

template <class F>
void sum_floats(const CombineArgs& args, int64_t begin, int64_t end) {
  using Raw = typename F::Raw;
  constexpr int kBatch = 8;
  int64_t i = begin;
  for (; i + kBatch * Lanes::kCount <= end; i += kBatch * Lanes::kCount) {
    sum_batch<F, Lanes, kBatch>(args, i);
  }
  for (; i < end; ++i) {
    float sum = F::load1(input<Raw>(args, 0) + i);
    for (int index = 1; index < args.inputs; ++index) {
      sum = sum + F::load1(input<Raw>(args, index) + i);
    }
    for (int index = 0; index < args.outputs; ++index) {
      F::store1(output<Raw>(args, index) + i, sum);
    }
  }
}

template <class F, Combine kOp>
void choose_floats(const CombineArgs& args, int64_t begin, int64_t end) {
  using Raw = typename F::Raw;
  for (int64_t i = begin; i < end; ++i) {
    float best = F::load1(input<Raw>(args, 0) + i);
    for (int index = 1; index < args.inputs; ++index) {
      best = choose<kOp>(best, F::load1(input<Raw>(args, index) + i));
    }
    for (int index = 0; index < args.outputs; ++index) {
      F::store1(output<Raw>(args, index) + i, best);
    }
  }
}

/// Integers wrap around.
template <class T, Combine kOp>
inline T merge(T a, T b) {
  if constexpr (kOp == Combine::sum && std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else if constexpr (kOp == Combine::sum) {
    return a + b;
  } else {
    const bool take = kOp == Combine::max ? b > a : b < a;
    return take || b != b ? b : a;
  }
}

template <class T, Combine kOp>
void combine_values(const CombineArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 256;
  T block[kBlock];
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = end - i < kBlock ? end - i : kBlock;
    const T* from = input<T>(args, 0) + i;
    for (int64_t k = 0; k < n; ++k) {
      block[k] = from[k];
    }
    for (int index = 1; index < args.inputs; ++index) {
      from = input<T>(args, index) + i;
      for (int64_t k = 0; k < n; ++k) {
        block[k] = merge<T, kOp>(block[k], from[k]);
      }
    }
    for (int index = 0; index < args.outputs; ++index) {
      T* const to = output<T>(args, index) + i;
      for (int64_t k = 0; k < n; ++k) {
        to[k] = block[k];
      }
    }
  }
}

template <class F>
void combine_floats(const CombineArgs& args, int64_t begin, int64_t end) {
  if (args.combine == Combine::sum) {
    sum_floats<F>(args, begin, end);
  } else if (args.combine == Combine::max) {
    choose_floats<F, Combine::max>(args, begin, end);
  } else {
    choose_floats<F, Combine::min>(args, begin, end);
  }
}

template <class T>
void combine_type(const CombineArgs& args, int64_t begin, int64_t end) {
  if (args.combine == Combine::sum) {
    combine_values<T, Combine::sum>(args, begin, end);
  } else if (args.combine == Combine::max) {
    combine_values<T, Combine::max>(args, begin, end);
  } else {
    combine_values<T, Combine::min>(args, begin, end);
  }
}

void combine(const CombineArgs& args, int64_t begin, int64_t end) {
  switch (args.element) {
    case Element::f32:
      return combine_floats<F32>(args, begin, end);
    case Element::f16:
      return combine_floats<F16>(args, begin, end);
    case Element::bf16:
      return combine_floats<Bf16>(args, begin, end);
    case Element::f64:
      return combine_type<double>(args, begin, end);
    case Element::u8:
      return combine_type<uint8_t>(args, begin, end);
    case Element::i8:
      return combine_type<int8_t>(args, begin, end);
    case Element::i16:
      return combine_type<int16_t>(args, begin, end);
    case Element::i32:
      return combine_type<int32_t>(args, begin, end);
    case Element::i64:
      return combine_type<int64_t>(args, begin, end);
  }
}

void stream_copy(void* to, const void* from, int64_t bytes) {
#if defined(__AVX512F__) || defined(__AVX2__)
  constexpr int64_t kLine = 64;
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const int64_t lead = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(target) & (kLine - 1));
  if (bytes < lead + kLine) {
    __builtin_memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  __builtin_memcpy(target, source, static_cast<size_t>(lead));
  int64_t at = lead;
  for (; at + kLine <= bytes; at += kLine) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at), _mm512_loadu_si512(source + at));
#else
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + kLine / 2));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + kLine / 2), high);
#endif
  }
  __builtin_memcpy(target + at, source + at, static_cast<size_t>(bytes - at));
  _mm_sfence(); // streaming stores are not ordered by a later release store
#else
  __builtin_memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

} // namespace
} // namespace trireme::kernels
