#pragma once

#include <trireme/kernels/cuda/lane.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// The elements of a warp, 8 for each thread, in arrays of any type. Loads fill registers with the bits as they are, so
// that all of them are under way before the first is converted. fp32 moves 16 bytes at a time, 2-byte types 8, 8-bit
// states 4, each next to those of the neighbouring thread.

namespace trireme::kernels::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int kEach = 8;     ///< elements of a thread
constexpr int kTogether = 4; ///< of which so many are neighbours
static_assert(kStateBlock == kLanes * kEach, "a warp has the elements that share a scale");

/// The elements [first, first + kStateBlock) below `end` of all arrays of a call.
struct WarpBlock {
  int64_t first, end;
  bool wide; ///< all of them are there, and all arrays aligned

  /// `aligned`: at index 0 all arrays begin at a multiple of kTogether elements.
  __device__ WarpBlock(int64_t first, int64_t end, bool aligned)
      : first(first), end(end), wide(aligned && first % kTogether == 0 && first + kStateBlock <= end) {}

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  /// Where the k-th run of kTogether elements of this thread begins, if wide.
  __device__ int64_t run(int k) const { return first + (k * kLanes + lane()) * kTogether; }
  /// Where element k of this thread is, if not.
  __device__ int64_t at(int k) const { return first + k * kLanes + lane(); }
  __device__ bool inside(int k) const { return wide || at(k) < end; }
};

constexpr int size_of(Element type) {
  return type == Element::u8 ? 1 : type == Element::f32 ? 4 : 2;
}

/// This thread's elements, packed as in memory.
struct Bits {
  uint32_t words[kEach];

  __device__ Bits() {
#pragma unroll
    for (uint32_t& word : words) {
      word = 0;
    }
  }

  static __device__ Bits load(const void* array, Element type, const WarpBlock& block) {
    Bits bits;
    if (!block.wide) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (block.inside(k)) {
          const int64_t i = block.at(k);
          bits.put(type, k,
                   type == Element::u8    ? static_cast<const uint8_t*>(array)[i]
                   : type == Element::f32 ? static_cast<const uint32_t*>(array)[i]
                                          : static_cast<const uint16_t*>(array)[i]);
        }
      }
      return bits;
    }
#pragma unroll
    for (int k = 0; k < kEach / kTogether; ++k) {
      const int64_t i = block.run(k);
      if (type == Element::f32) {
        const uint4 four = *reinterpret_cast<const uint4*>(static_cast<const uint32_t*>(array) + i);
        bits.words[4 * k] = four.x;
        bits.words[4 * k + 1] = four.y;
        bits.words[4 * k + 2] = four.z;
        bits.words[4 * k + 3] = four.w;
      } else if (type == Element::u8) {
        bits.words[k] = *reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(array) + i);
      } else {
        const uint2 two = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(array) + i);
        bits.words[2 * k] = two.x;
        bits.words[2 * k + 1] = two.y;
      }
    }
    return bits;
  }

  // __stwb() is an ordinary store, but one that nvcc does not split.
  __device__ void store(void* array, Element type, const WarpBlock& block) const {
    if (!block.wide) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (!block.inside(k)) {
          continue;
        }
        const int64_t i = block.at(k);
        if (type == Element::f32) {
          static_cast<uint32_t*>(array)[i] = get(type, k);
        } else if (type == Element::u8) {
          static_cast<uint8_t*>(array)[i] = static_cast<uint8_t>(get(type, k));
        } else {
          static_cast<uint16_t*>(array)[i] = static_cast<uint16_t>(get(type, k));
        }
      }
      return;
    }
#pragma unroll
    for (int k = 0; k < kEach / kTogether; ++k) {
      const int64_t i = block.run(k);
      if (type == Element::f32) {
        __stwb(reinterpret_cast<uint4*>(static_cast<uint32_t*>(array) + i),
               uint4{words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]});
      } else if (type == Element::u8) {
        *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(array) + i) = words[k];
      } else {
        __stwb(reinterpret_cast<uint2*>(static_cast<uint16_t*>(array) + i), uint2{words[2 * k], words[2 * k + 1]});
      }
    }
  }

  /// The bits of element k; those above its type are 0.
  __device__ uint32_t get(Element type, int k) const {
    return type == Element::f32  ? words[k]
           : type == Element::u8 ? words[k / 4] >> 8 * (k % 4) & 0xffU
                                 : words[k / 2] >> 16 * (k % 2) & 0xffffU;
  }
  /// Sets bits that are 0.
  __device__ void put(Element type, int k, uint32_t element) {
    if (type == Element::f32) {
      words[k] = element;
    } else if (type == Element::u8) {
      words[k / 4] |= element << 8 * (k % 4);
    } else {
      words[k / 2] |= element << 16 * (k % 2);
    }
  }

  /// As a float, for types of floats.
  __device__ float value(Element type, int k) const {
    const uint32_t element = get(type, k);
    return type == Element::bf16  ? float_of(element << 16)
           : type == Element::f16 ? __half2float(__builtin_bit_cast(__half, static_cast<uint16_t>(element)))
                                  : float_of(element);
  }
  __device__ void round(Element type, int k, float x) {
    put(type, k,
        type == Element::bf16  ? __builtin_bit_cast(uint16_t, __float2bfloat16_rn(x))
        : type == Element::f16 ? __builtin_bit_cast(uint16_t, __float2half_rn(x))
                               : bits_of(x));
  }
};

/// An optimizer state of this thread.
template <bool kSigned>
struct StateBits {
  Bits bits;
  float scale = 1; ///< of 8-bit states

  static __device__ StateBits load(const StateArray& state, const WarpBlock& block) {
    StateBits loaded;
    loaded.bits = Bits::load(state.values, state.type, block);
    if (state.type == Element::u8) {
      loaded.scale = state.scales[block.first / kStateBlock];
    }
    return loaded;
  }
  __device__ float value(Element type, int k) const {
    return type == Element::u8 ? decode_code(code_map<kSigned>(), static_cast<uint8_t>(bits.get(type, k)), scale)
                               : bits.value(type, k);
  }

  /// Rounds x to the state's type. All threads of the warp must call it.
  static __device__ StateBits of(const float (&x)[kEach], Element type, const WarpBlock& block, uint32_t seed) {
    StateBits rounded;
    if (type == Element::u8) {
      uint32_t largest = 0;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const uint32_t magnitude = block.inside(k) ? bits_of(x[k]) & 0x7fffffffU : 0;
        largest = magnitude > largest ? magnitude : largest;
      }
      rounded.scale = float_of(__reduce_max_sync(0xffffffffU, largest));
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (type == Element::u8) {
        rounded.bits.put(type, k, code_of<kSigned>(x[k], rounded.scale, seed));
      } else if (type == Element::bf16 && seed != kToNearest) {
        rounded.bits.put(type, k, stochastic_bf16(x[k], seed));
      } else {
        rounded.bits.round(type, k, x[k]);
      }
    }
    return rounded;
  }
  __device__ void store(const StateArray& state, const WarpBlock& block) const {
    bits.store(state.values, state.type, block);
    if (state.type == Element::u8 && WarpBlock::lane() == 0) {
      state.scales[block.first / kStateBlock] = scale < kLeastScale ? 0 : scale;
    }
  }
};

/// Calls f(block) for the blocks of elements [begin, end) of this warp.
template <class F>
__device__ inline void each_block(int64_t begin, int64_t end, bool aligned, const F& f) {
  const int64_t warps = blockDim.x / kLanes;
  for (int64_t first = begin + (blockIdx.x * warps + threadIdx.x / kLanes) * kStateBlock; first < end;
       first += gridDim.x * warps * kStateBlock) {
    f(WarpBlock(first, end, aligned));
  }
}

/// Whether kTogether elements of an array can be moved at a time, counted from its first; nullptr: there is no array.
inline bool is_aligned(const void* array, Element type) {
  return reinterpret_cast<uintptr_t>(array) % static_cast<uintptr_t>(kTogether * size_of(type)) == 0;
}

} // namespace
} // namespace trireme::kernels::cuda
