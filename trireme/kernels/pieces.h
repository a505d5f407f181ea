#pragma once

#include <trireme/kernels/blockwise.h>
#include <trireme/kernels/narrow.h>
#include <trireme/kernels/optimizer_args.h>
#include <trireme/kernels/stochastic.h>

#include <cstdint>

// Arrays of any type as fp32, one piece at a time.

namespace trireme::kernels {
namespace {

/// Elements of a piece: with its fp32 copies it fits into the L1 cache. A multiple of kStateBlock.
constexpr int64_t kPiece = 1024;
/// Length of a piece's copy. Not a multiple of 4 KiB: a load would wait for stores to another array at the same page
/// offset.
constexpr int64_t kRoom = kPiece + 80;

template <class F>
inline void widen(const void* array, int64_t begin, int64_t n, float* to) {
  const auto* const from = static_cast<const typename F::Raw*>(array) + begin;
  int64_t i = 0;
  for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
    F::load(from + i).store(to + i);
  }
  for (; i < n; ++i) {
    to[i] = F::load1(from + i);
  }
}

template <class F>
inline void narrow(const float* from, void* array, int64_t begin, int64_t n) {
  auto* const to = static_cast<typename F::Raw*>(array) + begin;
  int64_t i = 0;
  for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
    F::store(to + i, Lanes::load(from + i));
  }
  for (; i < n; ++i) {
    F::store1(to + i, from[i]);
  }
}

inline void narrow_stochastically(const float* from, void* array, int64_t begin, int64_t n, uint32_t seed) {
  auto* const to = static_cast<uint16_t*>(array) + begin;
  int64_t i = 0;
  for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
    store_stochastic_bf16(to + i, Lanes::load(from + i), seed);
  }
  for (; i < n; ++i) {
    to[i] = stochastic_bf16(from[i], seed);
  }
}

__attribute__((noinline)) void write_copy(const float* from, void* array, Element type, int64_t begin, int64_t n) {
  if (type == Element::f16) {
    narrow<F16>(from, array, begin, n);
  } else {
    narrow<Bf16>(from, array, begin, n);
  }
}

/// Elements [begin, begin + n): in their array, or converted in `room`.
__attribute__((noinline)) const float* floats_of(const void* array, Element type, int64_t begin, int64_t n,
                                                 float* room) {
  if (type == Element::f32) {
    return static_cast<const float*>(array) + begin;
  }
  if (type == Element::f16) {
    widen<F16>(array, begin, n, room);
  } else {
    widen<Bf16>(array, begin, n, room);
  }
  return room;
}

template <bool kSigned>
__attribute__((noinline)) float* state_floats(const StateArray& state, int64_t begin, int64_t n, float* room) {
  if (state.type == Element::f32) {
    return static_cast<float*>(state.values) + begin;
  }
  if (state.type == Element::bf16) {
    widen<Bf16>(state.values, begin, n, room);
    return room;
  }
  const auto* const codes = static_cast<const uint8_t*>(state.values) + begin;
  for (int64_t i = 0; i < n; i += kStateBlock) {
    decode_block<kSigned>(codes + i, state.scales[(begin + i) / kStateBlock], n - i < kStateBlock ? n - i : kStateBlock,
                          room + i);
  }
  return room;
}

/// Writes back the floats of state_floats(); does nothing if they are the array itself.
template <bool kSigned>
__attribute__((noinline)) void keep_state(const StateArray& state, int64_t begin, int64_t n, const float* from,
                                          uint32_t seed) {
  if (state.type == Element::f32) {
    return;
  }
  if (state.type == Element::bf16) {
    if (seed == kToNearest) {
      narrow<Bf16>(from, state.values, begin, n);
    } else {
      narrow_stochastically(from, state.values, begin, n, seed);
    }
    return;
  }
  auto* const codes = static_cast<uint8_t*>(state.values) + begin;
  for (int64_t i = 0; i < n; i += kStateBlock) {
    state.scales[(begin + i) / kStateBlock] =
        encode_block<kSigned>(from + i, n - i < kStateBlock ? n - i : kStateBlock, seed, codes + i);
  }
}

void decode_state(const StateArray& state, bool is_signed, int64_t begin, int64_t end, float* to) {
  const int64_t n = end - begin;
  const float* const found =
      is_signed ? state_floats<true>(state, begin, n, to) : state_floats<false>(state, begin, n, to);
  if (found != to) {
    __builtin_memcpy(to, found, static_cast<size_t>(n) * sizeof(float));
  }
}

void encode_state(const StateArray& state, bool is_signed, int64_t begin, int64_t end, const float* from,
                  uint32_t seed) {
  const int64_t n = end - begin;
  if (state.type == Element::f32) {
    __builtin_memcpy(static_cast<float*>(state.values) + begin, from, static_cast<size_t>(n) * sizeof(float));
  } else if (is_signed) {
    keep_state<true>(state, begin, n, from, seed);
  } else {
    keep_state<false>(state, begin, n, from, seed);
  }
}

} // namespace
} // namespace trireme::kernels
