#pragma once

#include <trireme/kernels/fused_rows.h>

// Attention of one token to kept keys and values; included by each fused_<simd>.cpp.

namespace trireme::kernels {
namespace {

/// Heads of queries that read a key together.
constexpr int kCachedQueries = 4;

/// The keys [begin, end) of a sample that block `block` of its tasks has; none where begin >= end.
struct CachedKeys {
  int64_t begin, end;
};
inline CachedKeys cached_keys(const CachedAttentionArgs& args, int64_t sample, int64_t block) {
  const int64_t length = args.lengths[sample];
  const int64_t first = args.window > 0 && args.window < length ? length - args.window : 0;
  const int64_t begin = first + block * args.block;
  return {begin, begin + args.block < length ? begin + args.block : length};
}

/// What a task leaves of a head: softmax's numerators times the values, then the largest score, then the sum of the
/// numerators.
inline float* cached_partial(const CachedAttentionArgs& args, int64_t sample, int64_t head, int64_t block) {
  return args.partial + ((sample * args.heads + head) * args.blocks + block) * (args.head_size + 2);
}

/// kQueries heads from `head` on, which use the rows of k and v. partial[r] has the query until the scores are there.
template <int kQueries, class T>
inline void cached_tile(const CachedAttentionArgs& args, const T* k, const T* v, int64_t keys, float* const* partial) {
  float weights[kQueries][kMostCachedKeys];
  for (int64_t key = 0; key < keys; ++key) {
    const T* const row = k + key * args.k_at.row;
    Wide sums[kQueries];
#pragma GCC unroll 4
    for (int r = 0; r < kQueries; ++r) {
      sums[r] = Wide::zero();
    }
    each(args.head_size, [&](int64_t d, const auto& at) {
      const Wide x = at.load(row + d);
#pragma GCC unroll 4
      for (int r = 0; r < kQueries; ++r) {
        sums[r] = fma(x, at.load(partial[r] + d), sums[r]);
      }
    });
#pragma GCC unroll 4
    for (int r = 0; r < kQueries; ++r) {
      weights[r][key] = sum(sums[r]);
    }
  }
  for (int r = 0; r < kQueries; ++r) {
    constexpr float kLowest = -__builtin_inff();
    Wide top = Wide::all(kLowest);
    each(keys, [&](int64_t j, const auto& at) { top = max(top, at.keep(at.load(weights[r] + j), kLowest)); });
    const float highest = largest(top);
    Wide total = Wide::zero();
    each(keys, [&](int64_t j, const auto& at) {
      const Wide e = at.keep(exp(at.load(weights[r] + j) - Wide::all(highest)), 0);
      at.store(e, weights[r] + j);
      total = total + e;
    });
    partial[r][args.head_size] = highest;
    partial[r][args.head_size + 1] = sum(total);
  }
  each(args.head_size, [&](int64_t d, const auto& at) {
    Wide sums[kQueries];
#pragma GCC unroll 4
    for (int r = 0; r < kQueries; ++r) {
      sums[r] = Wide::zero();
    }
    for (int64_t key = 0; key < keys; ++key) {
      const Wide x = at.load(v + key * args.v_at.row + d);
#pragma GCC unroll 4
      for (int r = 0; r < kQueries; ++r) {
        sums[r] = fma(x, Wide::all(weights[r][key]), sums[r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kQueries; ++r) {
      at.store(sums[r], partial[r] + d);
    }
  });
}

/// `count` heads, kQueries at a time.
template <int kQueries, class T>
inline void cached_heads(const CachedAttentionArgs& args, const T* k, const T* v, int64_t keys, int64_t sample,
                         int64_t head, int64_t count, int64_t block) {
  for (; count >= kQueries; head += kQueries, count -= kQueries) {
    float* partial[kQueries];
    for (int r = 0; r < kQueries; ++r) {
      partial[r] = cached_partial(args, sample, head + r, block);
      const T* const q = static_cast<const T*>(args.q) + sample * args.q_at.sample + (head + r) * args.q_at.head;
      each(args.head_size,
           [&](int64_t d, const auto& at) { at.store(at.load(q + d) * Wide::all(args.scale), partial[r] + d); });
    }
    cached_tile<kQueries>(args, k, v, keys, partial);
  }
  if constexpr (kQueries > 1) {
    if (count > 0) {
      cached_heads<kQueries - 1>(args, k, v, keys, sample, head, count, block);
    }
  }
}

void cached_attention(const CachedAttentionArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) {
    using T = decltype(t);
    const int64_t shared = args.heads / args.kv_heads;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t block = task % args.blocks;
      const int64_t kv_head = task / args.blocks % args.kv_heads;
      const int64_t sample = task / args.blocks / args.kv_heads;
      const CachedKeys keys = cached_keys(args, sample, block);
      if (keys.begin < keys.end) {
        const T* const k = static_cast<const T*>(args.k) + sample * args.k_at.sample + kv_head * args.k_at.head +
                           keys.begin * args.k_at.row;
        const T* const v = static_cast<const T*>(args.v) + sample * args.v_at.sample + kv_head * args.v_at.head +
                           keys.begin * args.v_at.row;
        cached_heads<kCachedQueries>(args, k, v, keys.end - keys.begin, sample, kv_head * shared, shared, block);
      }
    }
  });
}

/// The heads [begin, end) of all samples.
void cached_attention_join(const CachedAttentionArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) {
    using T = decltype(t);
    const int64_t size = args.head_size;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t sample = task / args.heads, head = task % args.heads;
      float* const first = cached_partial(args, sample, head, 0);
      const auto stride = size + 2;
      int64_t blocks = 1;
      float highest = first[size];
      for (; blocks < args.blocks && cached_keys(args, sample, blocks).begin < args.lengths[sample]; ++blocks) {
        const float top = first[blocks * stride + size];
        highest = top > highest || top != top ? top : highest;
      }
      float total = 0;
      for (int64_t block = 0; block < blocks; ++block) { // the sums become factors
        float* const sums = first + block * stride + size;
        float factor[Wide::kCount];
        exp(Wide::all(sums[0] - highest)).store(factor);
        total = __builtin_fmaf(factor[0], sums[1], total);
        sums[0] = factor[0];
      }
      const Wide divisor = Wide::all(total);
      T* const out = static_cast<T*>(args.out) + sample * args.out_at.sample + head * args.out_at.head;
      each(size, [&](int64_t d, const auto& at) {
        Wide x = Wide::zero();
        for (int64_t block = 0; block < blocks; ++block) {
          x = fma(at.load(first + block * stride + d), Wide::all(first[block * stride + size]), x);
        }
        at.store(x / divisor, out + d);
      });
    }
  });
}

} // namespace
} // namespace trireme::kernels
