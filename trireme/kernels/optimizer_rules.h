#pragma once

#include <trireme/kernels/device.h>
#include <trireme/kernels/optimizer_args.h>

// The arithmetic of each optimizer on registers of floats (lanes.h; on CUDA one float, cuda/lane.cuh). A rule has up to
// three states; the loop calls, array after array,
//   g = gradient(g, p)        when kDecayInGradient
//   s0 = first(g, s0)         which may change g
//   s1 = second(g, s0, s1), s2 = third(g, s0, s1, s2)
//   p = param(p, g, s0, s1, s2)   when kSteps
// and state() says where a state is. A rule that kHolds its states changes none of them and has no use for g.

namespace trireme::kernels {
namespace {

template <class V, bool kDecay>
struct AdamMoments {
  static constexpr int kStates = 2;
  static constexpr bool kSigned[3] = {true, false, true};
  static constexpr bool kDecayInGradient = kDecay;

  template <class A>
  TRIREME_DEVICE explicit AdamMoments(const A& args)
      : weight_decay(V::all(args.weight_decay)),
        one_minus_beta1(V::all(args.one_minus_beta1)),
        beta2(V::all(args.beta2)),
        one_minus_beta2(V::all(args.one_minus_beta2)) {}

  template <class A>
  TRIREME_DEVICE static const StateArray& state(const A& args, int i) {
    return i == 0 ? args.exp_avg : args.exp_avg_sq;
  }
  TRIREME_DEVICE V gradient(V g, V p) const { return fma(weight_decay, p, g); }
  TRIREME_DEVICE V first(V& g, V m) const { return fma(one_minus_beta1, g - m, m); }
  TRIREME_DEVICE V second(V g, V, V v) const { return fma(one_minus_beta2 * g, g, beta2 * v); }

  V weight_decay, one_minus_beta1, beta2, one_minus_beta2;
};

template <class V, bool kDecay>
struct AdamRule : AdamMoments<V, kDecay> {
  using Args = AdamArgs;
  static constexpr bool kSteps = true;

  TRIREME_DEVICE explicit AdamRule(const AdamArgs& args)
      : AdamMoments<V, kDecay>(args),
        param_scale(V::all(args.param_scale)),
        step_size(V::all(args.step_size)),
        root_scale(V::all(args.root_scale)),
        eps(V::all(args.eps)) {}

  TRIREME_DEVICE V param(V p, V, V m, V v, V) const {
    return fnma(step_size, m / fma(sqrt(v), root_scale, eps), p * param_scale);
  }

  V param_scale, step_size, root_scale, eps;
};
template <class V>
using Adam = AdamRule<V, false>;
template <class V>
using AdamDecayed = AdamRule<V, true>;

/// Adam after both moments were updated elsewhere (compressed means): reads them, and no gradient.
template <class V>
struct AdamHeld : AdamRule<V, false> {
  static constexpr bool kHolds = true;
  using AdamRule<V, false>::AdamRule;

  TRIREME_DEVICE V first(V&, V m) const { return m; }
  TRIREME_DEVICE V second(V, V, V v) const { return v; }
};

/// LAMB's first phase: decay is part of the update, not of the gradient.
template <class V>
struct LambMoments : AdamMoments<V, false> {
  using Args = LambArgs;
  static constexpr bool kSteps = false;
  using AdamMoments<V, false>::AdamMoments;
};

/// LAMB's u.
template <class V>
struct LambDirection {
  TRIREME_DEVICE explicit LambDirection(const LambArgs& args)
      : weight_decay(V::all(args.weight_decay)),
        eps_in(V::all(args.eps_inside_root ? args.eps : 0)),
        eps_out(V::all(args.eps_inside_root ? 0 : args.eps)) {}

  TRIREME_DEVICE V operator()(V p, V m, V v) const { return fma(weight_decay, p, m / (sqrt(v + eps_in) + eps_out)); }

  V weight_decay, eps_in, eps_out;
};

enum class Momentum { none, heavy_ball, nesterov };

template <class V, Momentum kMomentum>
struct SgdRule {
  using Args = SgdArgs;
  static constexpr int kStates = kMomentum == Momentum::none ? 0 : 1;
  static constexpr bool kSigned[3] = {true, true, true};
  static constexpr bool kDecayInGradient = true;
  static constexpr bool kSteps = true;

  TRIREME_DEVICE explicit SgdRule(const SgdArgs& args)
      : weight_decay(V::all(args.weight_decay)),
        lr(V::all(args.lr)),
        momentum(V::all(args.momentum)),
        one_minus_dampening(V::all(args.one_minus_dampening)),
        is_first(args.first) {}

  TRIREME_DEVICE static const StateArray& state(const SgdArgs& args, int) { return args.momentum_buffer; }
  TRIREME_DEVICE V gradient(V g, V p) const { return fma(weight_decay, p, g); }
  TRIREME_DEVICE V first(V& g, V buffer) const { return is_first ? g : fma(momentum, buffer, one_minus_dampening * g); }
  TRIREME_DEVICE V param(V p, V g, V buffer, V, V) const {
    if constexpr (kMomentum == Momentum::none) {
      return fnma(lr, g, p);
    } else if constexpr (kMomentum == Momentum::nesterov) {
      return fnma(lr, fma(momentum, buffer, g), p);
    } else {
      return fnma(lr, buffer, p);
    }
  }

  V weight_decay, lr, momentum, one_minus_dampening;
  bool is_first;
};
template <class V>
using SgdPlain = SgdRule<V, Momentum::none>;
template <class V>
using SgdHeavyBall = SgdRule<V, Momentum::heavy_ball>;
template <class V>
using SgdNesterov = SgdRule<V, Momentum::nesterov>;

template <class V>
struct Lion {
  using Args = LionArgs;
  static constexpr int kStates = 1;
  static constexpr bool kSigned[3] = {true, true, true};
  static constexpr bool kDecayInGradient = false;
  static constexpr bool kSteps = true;

  TRIREME_DEVICE explicit Lion(const LionArgs& args)
      : param_scale(V::all(args.param_scale)),
        lr(V::all(args.lr)),
        one_minus_beta1(V::all(args.one_minus_beta1)),
        one_minus_beta2(V::all(args.one_minus_beta2)) {}

  TRIREME_DEVICE static const StateArray& state(const LionArgs& args, int) { return args.exp_avg; }
  TRIREME_DEVICE V first(V& g, V m) const {
    const V change = g - m;
    g = sign(fma(one_minus_beta1, change, m));
    return fma(one_minus_beta2, change, m);
  }
  TRIREME_DEVICE V param(V p, V direction, V, V, V) const { return fnma(lr, direction, p * param_scale); }

  V param_scale, lr, one_minus_beta1, one_minus_beta2;
};

template <class V>
struct Adagrad {
  using Args = AdagradArgs;
  static constexpr int kStates = 1;
  static constexpr bool kSigned[3] = {false, true, true};
  static constexpr bool kDecayInGradient = true;
  static constexpr bool kSteps = true;

  TRIREME_DEVICE explicit Adagrad(const AdagradArgs& args)
      : weight_decay(V::all(args.weight_decay)), lr(V::all(args.lr)), eps(V::all(args.eps)) {}

  TRIREME_DEVICE static const StateArray& state(const AdagradArgs& args, int) { return args.sum; }
  TRIREME_DEVICE V gradient(V g, V p) const { return fma(weight_decay, p, g); }
  TRIREME_DEVICE V first(V& g, V sum) const { return fma(g, g, sum); }
  TRIREME_DEVICE V param(V p, V g, V sum, V, V) const { return fnma(lr, g / (sqrt(sum) + eps), p); }

  V weight_decay, lr, eps;
};

/// The used states come first: square_avg, then grad_avg when centered, then momentum_buffer.
template <class V, bool kCentered, bool kMomentum>
struct RmspropRule {
  using Args = RmspropArgs;
  static constexpr int kStates = 1 + kCentered + kMomentum;
  static constexpr bool kSigned[3] = {false, true, true};
  static constexpr bool kDecayInGradient = true;
  static constexpr bool kSteps = true;

  TRIREME_DEVICE explicit RmspropRule(const RmspropArgs& args)
      : weight_decay(V::all(args.weight_decay)),
        lr(V::all(args.lr)),
        alpha(V::all(args.alpha)),
        one_minus_alpha(V::all(args.one_minus_alpha)),
        momentum(V::all(args.momentum)),
        eps(V::all(args.eps)) {}

  TRIREME_DEVICE static const StateArray& state(const RmspropArgs& args, int i) {
    return i == 0 ? args.square_avg : i == 1 && kCentered ? args.grad_avg : args.momentum_buffer;
  }
  TRIREME_DEVICE V gradient(V g, V p) const { return fma(weight_decay, p, g); }
  TRIREME_DEVICE V first(V& g, V square) const { return fma(one_minus_alpha * g, g, alpha * square); }
  TRIREME_DEVICE V second(V g, V square, V old) const {
    if constexpr (kCentered) {
      return fma(one_minus_alpha, g - old, old);
    } else {
      return fma(momentum, old, direction(g, square, old));
    }
  }
  TRIREME_DEVICE V third(V g, V square, V average, V old) const {
    return fma(momentum, old, direction(g, square, average));
  }
  TRIREME_DEVICE V param(V p, V g, V square, V s1, V s2) const {
    if constexpr (kMomentum) {
      return fnma(lr, kCentered ? s2 : s1, p);
    } else {
      return fnma(lr, direction(g, square, s1), p);
    }
  }
  TRIREME_DEVICE V direction(V g, V square, V average) const {
    const V variance = kCentered ? fnma(average, average, square) : square;
    return g / (sqrt(variance) + eps);
  }

  V weight_decay, lr, alpha, one_minus_alpha, momentum, eps;
};
template <class V>
using Rmsprop = RmspropRule<V, false, false>;
template <class V>
using RmspropMomentum = RmspropRule<V, false, true>;
template <class V>
using RmspropCentered = RmspropRule<V, true, false>;
template <class V>
using RmspropCenteredMomentum = RmspropRule<V, true, true>;

} // namespace
} // namespace trireme::kernels
