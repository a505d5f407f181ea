#pragma once

#include <trireme/kernels/lanes.h>
#include <trireme/kernels/norm_loops.h>
#include <trireme/kernels/optimizer_rules.h>
#include <trireme/kernels/pieces.h>
#include <trireme/kernels/stochastic.h>

#include <cstdint>
#include <type_traits>

// Runs the rules over arrays; included by each kernels_<simd>.cpp.

namespace trireme::kernels {
namespace {

constexpr int kMostStates = 3;

template <class Rule>
inline constexpr bool kHoldsStates = requires { Rule::kHolds; };

/// Elements of a range: in their arrays, or one piece as fp32.
struct Elements {
  float* param = nullptr;
  const void* grad = nullptr;
  void* states[kMostStates] = {};
  void* copy = nullptr;
};

/// The types in which a loop reads gradients, stores states and writes the copy; Copy = void: none.
template <class Grad, class State, class Copy>
struct Types {
  using G = Grad;
  using S = State;
  using C = Copy;
};
using Floats = Types<F32, F32, void>;

/// A state's new values; bf16 rounded stochastically.
template <class Rule, class State, class V>
inline void store_state(typename State::Raw* p, V x, uint32_t seed) {
  if constexpr (kHoldsStates<Rule>) {
    return;
  } else if constexpr (std::is_same_v<State, Bf16>) {
    store_stochastic_bf16(p, x, seed);
  } else {
    store_as<State>(p, x);
  }
}

/// Steps kBatch registers from element i on, one array after the other: several cache lines of an array in a row keep
/// the memory's pages open. With 8 registers of AVX-512 this measured 3 % faster on one thread than element by element.
/// Software prefetch at 1, 2 and 4 KiB ahead cost 5 to 30 %.
template <class V, int kBatch, class T, class Rule>
inline void step_batch(const Rule& rule, V grad_scale, uint32_t seed, const Elements& e, int64_t i) {
  using Grad = typename T::G;
  using State = typename T::S;
  const auto state_at = [&](int s, int k) {
    return static_cast<typename State::Raw*>(e.states[s]) + i + k * V::kCount;
  };
  V g[kBatch], s[kMostStates][kBatch];
#pragma GCC unroll 8
  for (int k = 0; k < kBatch; ++k) {
    const int64_t at = i + k * V::kCount;
    if constexpr (kHoldsStates<Rule>) {
      g[k] = grad_scale;
    } else {
      g[k] = load_as<Grad, V>(static_cast<const typename Grad::Raw*>(e.grad) + at) * grad_scale;
    }
    if constexpr (Rule::kDecayInGradient) {
      g[k] = rule.gradient(g[k], V::load(e.param + at));
    }
    s[0][k] = s[1][k] = s[2][k] = g[k];
  }
  if constexpr (Rule::kStates > 0) {
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      s[0][k] = rule.first(g[k], load_as<State, V>(state_at(0, k)));
      store_state<Rule, State>(state_at(0, k), s[0][k], seed);
    }
  }
  if constexpr (Rule::kStates > 1) {
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      s[1][k] = rule.second(g[k], s[0][k], load_as<State, V>(state_at(1, k)));
      store_state<Rule, State>(state_at(1, k), s[1][k], seed);
    }
  }
  if constexpr (Rule::kStates > 2) {
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      s[2][k] = rule.third(g[k], s[0][k], s[1][k], load_as<State, V>(state_at(2, k)));
      store_state<Rule, State>(state_at(2, k), s[2][k], seed);
    }
  }
  if constexpr (Rule::kSteps) {
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      const int64_t at = i + k * V::kCount;
      const V p = rule.param(V::load(e.param + at), g[k], s[0][k], s[1][k], s[2][k]);
      p.store(e.param + at);
      if constexpr (!std::is_void_v<typename T::C>) {
        store_as<typename T::C>(static_cast<typename T::C::Raw*>(e.copy) + at, p);
      }
    }
  }
}

/// A rule's scalars in registers of both widths.
template <template <class> class Rule, class T = Floats>
struct Stepper {
  explicit Stepper(const typename Rule<Lanes>::Args& args)
      : wide(args), single(args), grad_scale(args.grad_scale), seed(args.seed) {}

  void operator()(const Elements& e, int64_t begin, int64_t end) const {
    int64_t i = begin;
    if constexpr (Lanes::kCount > 1) {
      constexpr int kBatch = 8;
      const Lanes scale = Lanes::all(grad_scale);
      for (; i + kBatch * Lanes::kCount <= end; i += kBatch * Lanes::kCount) {
        step_batch<Lanes, kBatch, T>(wide, scale, seed, e, i);
      }
      for (; i + Lanes::kCount <= end; i += Lanes::kCount) {
        step_batch<Lanes, 1, T>(wide, scale, seed, e, i);
      }
    }
    for (; i < end; ++i) {
      step_batch<ScalarLanes, 1, T>(single, ScalarLanes::all(grad_scale), seed, e, i);
    }
  }

  Rule<Lanes> wide;
  Rule<ScalarLanes> single;
  float grad_scale;
  uint32_t seed;
};

/// The states of a rule as fp32, for one piece at a time.
template <class Rule>
class States {
 public:
  explicit States(const typename Rule::Args& args) : args_(args) {}

  bool are_floats() const {
    bool all = true;
    for (int s = 0; s < Rule::kStates; ++s) {
      all = all && Rule::state(args_, s).type == Element::f32;
    }
    return all;
  }
  void read(int64_t begin, int64_t n, Elements& e) {
    if constexpr (Rule::kStates > 0) {
      e.states[0] = state_floats<Rule::kSigned[0]>(Rule::state(args_, 0), begin, n, rooms_[0]);
    }
    if constexpr (Rule::kStates > 1) {
      e.states[1] = state_floats<Rule::kSigned[1]>(Rule::state(args_, 1), begin, n, rooms_[1]);
    }
    if constexpr (Rule::kStates > 2) {
      e.states[2] = state_floats<Rule::kSigned[2]>(Rule::state(args_, 2), begin, n, rooms_[2]);
    }
  }
  void keep(int64_t begin, int64_t n, const Elements& e) const {
    if constexpr (Rule::kStates > 0) {
      keep_state<Rule::kSigned[0]>(Rule::state(args_, 0), begin, n, static_cast<const float*>(e.states[0]), args_.seed);
    }
    if constexpr (Rule::kStates > 1) {
      keep_state<Rule::kSigned[1]>(Rule::state(args_, 1), begin, n, static_cast<const float*>(e.states[1]), args_.seed);
    }
    if constexpr (Rule::kStates > 2) {
      keep_state<Rule::kSigned[2]>(Rule::state(args_, 2), begin, n, static_cast<const float*>(e.states[2]), args_.seed);
    }
  }

 private:
  const typename Rule::Args& args_;
  alignas(64) float rooms_[Rule::kStates == 0 ? 1 : Rule::kStates][kRoom];
};

/// Loop for any types, in pieces.
template <template <class> class Rule>
void step_pieces(const typename Rule<Lanes>::Args& args, int64_t begin, int64_t end) {
  const Stepper<Rule> stepper(args);
  States<Rule<Lanes>> states(args);
  alignas(64) float grad_room[kRoom];
  for (int64_t i = begin; i < end; i += kPiece) {
    const int64_t n = end - i < kPiece ? end - i : kPiece;
    Elements e;
    e.param = args.param + i;
    if constexpr (!kHoldsStates<Rule<Lanes>>) {
      e.grad = floats_of(args.grad, args.grad_type, i, n, grad_room);
    }
    states.read(i, n, e);
    stepper(e, 0, n);
    if constexpr (!kHoldsStates<Rule<Lanes>>) {
      states.keep(i, n, e);
    }
    if (args.param_copy != nullptr) {
      write_copy(e.param, args.param_copy, args.copy_type, i, n);
    }
  }
}

/// Loop for types known at compile time.
template <template <class> class Rule, class T>
void step_in_place(const typename Rule<Lanes>::Args& args, int64_t begin, int64_t end) {
  Elements e;
  e.param = args.param;
  e.grad = args.grad;
  e.copy = args.param_copy;
  for (int s = 0; s < Rule<Lanes>::kStates; ++s) {
    e.states[s] = Rule<Lanes>::state(args, s).values;
  }
  const Stepper<Rule, T> stepper{args};
  stepper(e, begin, end);
}

/// Special loops: fp32; with kMixed also bf16 gradients with a bf16 copy and fp32 or bf16 states. Conversions in
/// registers cost less than through the L1 cache.
template <template <class> class Rule, bool kMixed = false>
void step(const typename Rule<Lanes>::Args& args, int64_t begin, int64_t end) {
  const auto all_states = [&](Element type) {
    bool all = true;
    for (int s = 0; s < Rule<Lanes>::kStates; ++s) {
      all = all && Rule<Lanes>::state(args, s).type == type;
    }
    return all;
  };
  if (args.grad_type == Element::f32 && args.param_copy == nullptr && all_states(Element::f32)) {
    return step_in_place<Rule, Floats>(args, begin, end);
  }
  if constexpr (kMixed) {
    if (args.grad_type == Element::bf16 && args.param_copy != nullptr && args.copy_type == Element::bf16) {
      if (all_states(Element::f32)) {
        return step_in_place<Rule, Types<Bf16, F32, Bf16>>(args, begin, end);
      }
      if (all_states(Element::bf16) && args.seed != kToNearest) {
        return step_in_place<Rule, Types<Bf16, Bf16, Bf16>>(args, begin, end);
      }
    }
  }
  step_pieces<Rule>(args, begin, end);
}

void adam(const AdamArgs& args, int64_t begin, int64_t end) {
  if (args.one_minus_beta1 == 0 && args.beta2 == 1 && args.one_minus_beta2 == 0) {
    return step<AdamHeld, true>(args, begin, end);
  }
  args.weight_decay != 0 ? step<AdamDecayed, true>(args, begin, end) : step<Adam, true>(args, begin, end);
}

void sgd(const SgdArgs& args, int64_t begin, int64_t end) {
  if (args.momentum_buffer.values == nullptr) {
    step<SgdPlain>(args, begin, end);
  } else if (args.nesterov) {
    step<SgdNesterov>(args, begin, end);
  } else {
    step<SgdHeavyBall>(args, begin, end);
  }
}

void lion(const LionArgs& args, int64_t begin, int64_t end) {
  step<Lion>(args, begin, end);
}

void adagrad(const AdagradArgs& args, int64_t begin, int64_t end) {
  step<Adagrad>(args, begin, end);
}

void rmsprop(const RmspropArgs& args, int64_t begin, int64_t end) {
  const bool momentum = args.momentum_buffer.values != nullptr;
  if (args.grad_avg.values != nullptr) {
    momentum ? step<RmspropCenteredMomentum>(args, begin, end) : step<RmspropCentered>(args, begin, end);
  } else {
    momentum ? step<RmspropMomentum>(args, begin, end) : step<Rmsprop>(args, begin, end);
  }
}

/// Calls f(V{}, i) for registers, then for the remaining elements.
template <class F>
inline void for_each_register(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
    f(Lanes{}, i);
  }
  for (; i < n; ++i) {
    f(ScalarLanes{}, i);
  }
}

LambSums lamb_moments(const LambArgs& args, int64_t begin, int64_t end) {
  const Stepper<LambMoments> stepper(args);
  States<LambMoments<Lanes>> states(args);
  const bool exact = states.are_floats();
  SquaredSums params, updates;
  alignas(64) float room[kRoom];
  for (int64_t i = begin; i < end; i += kPiece) {
    const int64_t n = end - i < kPiece ? end - i : kPiece;
    Elements e;
    e.param = args.param + i;
    e.grad = floats_of(args.grad, args.grad_type, i, n, room);
    states.read(i, n, e);
    stepper(e, 0, n);
    states.keep(i, n, e);
    if (!exact) {
      states.read(i, n, e); // the norm of the update that phase 2 applies
    }
    const auto* const m = static_cast<const float*>(e.states[0]);
    const auto* const v = static_cast<const float*>(e.states[1]);
    for_each_register(n, [&](auto kind, int64_t k) {
      using V = decltype(kind);
      const LambDirection<V> direction{args};
      direction(V::load(e.param + k), V::load(m + k), V::load(v + k)).store(room + k);
    });
    params.add(e.param, n);
    updates.add(room, n);
  }
  return {params.total(), updates.total()};
}

void lamb_apply(const LambArgs& args, int64_t begin, int64_t end) {
  States<LambMoments<Lanes>> states(args);
  for (int64_t i = begin; i < end; i += kPiece) {
    const int64_t n = end - i < kPiece ? end - i : kPiece;
    Elements e;
    e.param = args.param + i;
    states.read(i, n, e);
    const auto* const m = static_cast<const float*>(e.states[0]);
    const auto* const v = static_cast<const float*>(e.states[1]);
    for_each_register(n, [&](auto kind, int64_t k) {
      using V = decltype(kind);
      const V p = V::load(e.param + k);
      const LambDirection<V> direction{args};
      const V u = direction(p, V::load(m + k), V::load(v + k));
      fnma(V::all(args.step_size), u, p).store(e.param + k);
    });
    if (args.param_copy != nullptr) {
      write_copy(e.param, args.param_copy, args.copy_type, i, n);
    }
  }
}

} // namespace
} // namespace trireme::kernels
