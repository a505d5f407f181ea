#pragma once

#include <trireme/kernels/kernels.h>
#include <trireme/kernels/lanes.h>

// The kernels themselves, written once; included by each kernels_<simd>.cpp.

namespace trireme::kernels {
namespace {

/// The scalars of AdamArgs, spread over registers.
template <class V>
struct AdamScalars {
  explicit AdamScalars(const AdamArgs& args)
      : grad_scale(V::all(args.grad_scale)),
        weight_decay(V::all(args.weight_decay)),
        param_scale(V::all(args.param_scale)),
        one_minus_beta1(V::all(args.one_minus_beta1)),
        beta2(V::all(args.beta2)),
        one_minus_beta2(V::all(args.one_minus_beta2)),
        step_size(V::all(args.step_size)),
        root_scale(V::all(args.root_scale)),
        eps(V::all(args.eps)) {}

  V grad_scale, weight_decay, param_scale, one_minus_beta1, beta2, one_minus_beta2, step_size, root_scale, eps;
};

template <class V, bool kDecayInGradient>
inline void adam_at(const AdamArgs& args, const AdamScalars<V>& s, int64_t i) {
  const V p = V::load(args.param + i);
  V g = V::load(args.grad + i) * s.grad_scale;
  if constexpr (kDecayInGradient) {
    g = fma(s.weight_decay, p, g);
  }
  const V m_old = V::load(args.exp_avg + i);
  const V m = fma(s.one_minus_beta1, g - m_old, m_old);
  const V v = fma(s.one_minus_beta2 * g, g, s.beta2 * V::load(args.exp_avg_sq + i));
  const V denominator = fma(sqrt(v), s.root_scale, s.eps);
  fnma(s.step_size, m / denominator, p * s.param_scale).store(args.param + i);
  m.store(args.exp_avg + i);
  v.store(args.exp_avg_sq + i);
}

template <bool kDecayInGradient>
void adam_range(const AdamArgs& args, int64_t begin, int64_t end) {
  const AdamScalars<Lanes> wide(args);
  int64_t i = begin;
  for (; i + 2 * Lanes::kCount <= end; i += 2 * Lanes::kCount) {
    adam_at<Lanes, kDecayInGradient>(args, wide, i);
    adam_at<Lanes, kDecayInGradient>(args, wide, i + Lanes::kCount);
  }
  const AdamScalars<ScalarLanes> single(args);
  for (; i < end; ++i) {
    adam_at<ScalarLanes, kDecayInGradient>(args, single, i);
  }
}

void adam(const AdamArgs& args, int64_t begin, int64_t end) {
  if (args.weight_decay != 0) {
    adam_range<true>(args, begin, end);
  } else {
    adam_range<false>(args, begin, end);
  }
}

enum class Momentum { none, heavy_ball, nesterov };

template <class V, Momentum kMomentum>
inline void sgd_at(const SgdArgs& args, int64_t i) {
  const V p = V::load(args.param + i);
  V g = fma(V::all(args.weight_decay), p, V::load(args.grad + i) * V::all(args.grad_scale));
  if constexpr (kMomentum != Momentum::none) {
    V buffer = g;
    if (!args.first) {
      buffer = fma(
          V::all(args.momentum), V::load(args.momentum_buffer + i), V::all(args.one_minus_dampening) * g);
    }
    buffer.store(args.momentum_buffer + i);
    g = kMomentum == Momentum::nesterov ? fma(V::all(args.momentum), buffer, g) : buffer;
  }
  fnma(V::all(args.lr), g, p).store(args.param + i);
}

template <Momentum kMomentum>
void sgd_range(const SgdArgs& args, int64_t begin, int64_t end) {
  int64_t i = begin;
  for (; i + Lanes::kCount <= end; i += Lanes::kCount) {
    sgd_at<Lanes, kMomentum>(args, i);
  }
  for (; i < end; ++i) {
    sgd_at<ScalarLanes, kMomentum>(args, i);
  }
}

void sgd(const SgdArgs& args, int64_t begin, int64_t end) {
  if (args.momentum_buffer == nullptr) {
    sgd_range<Momentum::none>(args, begin, end);
  } else if (args.nesterov) {
    sgd_range<Momentum::nesterov>(args, begin, end);
  } else {
    sgd_range<Momentum::heavy_ball>(args, begin, end);
  }
}

double squared_norm(const float* x, int64_t n) {
  constexpr int kSums = 32;
  constexpr int kRegisters = kSums / SquareSum::kCount;
  SquareSum registers[kRegisters];
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int r = 0; r < kRegisters; ++r) {
      registers[r].add(x + i + r * SquareSum::kCount);
    }
  }
  double sums[kSums];
  for (int r = 0; r < kRegisters; ++r) {
    registers[r].store(sums + r * SquareSum::kCount);
  }
  for (int lane = 0; i + lane < n; ++lane) {
    const double value = x[i + lane];
    sums[lane] += value * value;
  }
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      sums[lane] += sums[lane + half];
    }
  }
  return sums[0];
}

} // namespace
} // namespace trireme::kernels
