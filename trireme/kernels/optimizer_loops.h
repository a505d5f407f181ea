#pragma once

#include <trireme/kernels/norm_loops.h>
#include <trireme/kernels/optimizer_rules.h>
#include <trireme/kernels/pieces.h>

#include <cstdint>

// Drives the rules over arrays; included by each kernels_<simd>.cpp.

namespace trireme::kernels {
namespace {

constexpr int kMostStates = 3;

/// One piece as fp32.
struct Floats {
  float* param = nullptr;
  const float* grad = nullptr;
  float* states[kMostStates] = {};
};

/// Steps kBatch registers from element i on, one array after the other: several cache lines of an array in
/// a row keep the memory's pages open. With 8 registers of AVX-512 this measured 3 % faster on one thread than
/// element by element; software prefetch, tried at 1, 2 and 4 KiB ahead, cost 5 to 30 %.
template <class V, int kBatch, class Rule>
inline void step_batch(const Rule& rule, V grad_scale, const Floats& f, int64_t i) {
  V g[kBatch], s[kMostStates][kBatch];
#pragma GCC unroll 8
  for (int k = 0; k < kBatch; ++k) {
    const int64_t at = i + k * V::kCount;
    g[k] = V::load(f.grad + at) * grad_scale;
    if constexpr (Rule::kDecayInGradient) {
      g[k] = rule.gradient(g[k], V::load(f.param + at));
    }
    s[0][k] = s[1][k] = s[2][k] = g[k];
  }
  if constexpr (Rule::kStates > 0) {
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      float* const at = f.states[0] + i + k * V::kCount;
      s[0][k] = rule.first(g[k], V::load(at));
      s[0][k].store(at);
    }
  }
  if constexpr (Rule::kStates > 1) {
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      float* const at = f.states[1] + i + k * V::kCount;
      s[1][k] = rule.second(g[k], s[0][k], V::load(at));
      s[1][k].store(at);
    }
  }
  if constexpr (Rule::kStates > 2) {
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      float* const at = f.states[2] + i + k * V::kCount;
      s[2][k] = rule.third(g[k], s[0][k], s[1][k], V::load(at));
      s[2][k].store(at);
    }
  }
  if constexpr (Rule::kSteps) {
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      float* const at = f.param + i + k * V::kCount;
      rule.param(V::load(at), g[k], s[0][k], s[1][k], s[2][k]).store(at);
    }
  }
}

/// A rule's scalars in registers of both widths.
template <template <class> class Rule>
struct Stepper {
  explicit Stepper(const typename Rule<Lanes>::Args& args) : wide(args), single(args), grad_scale(args.grad_scale) {}

  void operator()(const Floats& f, int64_t n) const {
    int64_t i = 0;
    if constexpr (Lanes::kCount > 1) {
      constexpr int kBatch = 8;
      const Lanes scale = Lanes::all(grad_scale);
      for (; i + kBatch * Lanes::kCount <= n; i += kBatch * Lanes::kCount) {
        step_batch<Lanes, kBatch>(wide, scale, f, i);
      }
      for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
        step_batch<Lanes, 1>(wide, scale, f, i);
      }
    }
    for (; i < n; ++i) {
      step_batch<ScalarLanes, 1>(single, ScalarLanes::all(grad_scale), f, i);
    }
  }

  Rule<Lanes> wide;
  Rule<ScalarLanes> single;
  float grad_scale;
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
  void read(int64_t begin, int64_t n, Floats& f) {
    if constexpr (Rule::kStates > 0) {
      f.states[0] = state_floats<Rule::kSigned[0]>(Rule::state(args_, 0), begin, n, rooms_[0]);
    }
    if constexpr (Rule::kStates > 1) {
      f.states[1] = state_floats<Rule::kSigned[1]>(Rule::state(args_, 1), begin, n, rooms_[1]);
    }
    if constexpr (Rule::kStates > 2) {
      f.states[2] = state_floats<Rule::kSigned[2]>(Rule::state(args_, 2), begin, n, rooms_[2]);
    }
  }
  void keep(int64_t begin, int64_t n, const Floats& f) const {
    if constexpr (Rule::kStates > 0) {
      keep_state<Rule::kSigned[0]>(Rule::state(args_, 0), begin, n, f.states[0]);
    }
    if constexpr (Rule::kStates > 1) {
      keep_state<Rule::kSigned[1]>(Rule::state(args_, 1), begin, n, f.states[1]);
    }
    if constexpr (Rule::kStates > 2) {
      keep_state<Rule::kSigned[2]>(Rule::state(args_, 2), begin, n, f.states[2]);
    }
  }

 private:
  const typename Rule::Args& args_;
  alignas(64) float rooms_[Rule::kStates == 0 ? 1 : Rule::kStates][kRoom];
};

template <template <class> class Rule>
void step(const typename Rule<Lanes>::Args& args, int64_t begin, int64_t end) {
  const Stepper<Rule> stepper(args);
  States<Rule<Lanes>> states(args);
  alignas(64) float grad_room[kRoom];
  const bool plain = args.grad_type == Element::f32 && args.param_copy == nullptr && states.are_floats();
  const int64_t piece = plain ? end - begin : kPiece;
  for (int64_t i = begin; i < end; i += piece) {
    const int64_t n = end - i < piece ? end - i : piece;
    Floats f;
    f.param = args.param + i;
    f.grad = floats_of(args.grad, args.grad_type, i, n, grad_room);
    states.read(i, n, f);
    stepper(f, n);
    states.keep(i, n, f);
    if (args.param_copy != nullptr) {
      write_copy(f.param, args.param_copy, args.copy_type, i, n);
    }
  }
}

void adam(const AdamArgs& args, int64_t begin, int64_t end) {
  args.weight_decay != 0 ? step<AdamDecayed>(args, begin, end) : step<Adam>(args, begin, end);
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

/// Calls f(V{}, i) for registers, then for single elements.
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
    Floats f;
    f.param = args.param + i;
    f.grad = floats_of(args.grad, args.grad_type, i, n, room);
    states.read(i, n, f);
    stepper(f, n);
    states.keep(i, n, f);
    if (!exact) {
      states.read(i, n, f); // the norm is that of the update which phase 2 will see
    }
    for_each_register(n, [&](auto v, int64_t k) {
      using V = decltype(v);
      const LambDirection<V> direction{args};
      direction(V::load(f.param + k), V::load(f.states[0] + k), V::load(f.states[1] + k)).store(room + k);
    });
    params.add(f.param, n);
    updates.add(room, n);
  }
  return {params.total(), updates.total()};
}

void lamb_apply(const LambArgs& args, int64_t begin, int64_t end) {
  States<LambMoments<Lanes>> states(args);
  for (int64_t i = begin; i < end; i += kPiece) {
    const int64_t n = end - i < kPiece ? end - i : kPiece;
    Floats f;
    f.param = args.param + i;
    states.read(i, n, f);
    for_each_register(n, [&](auto v, int64_t k) {
      using V = decltype(v);
      const V p = V::load(f.param + k);
      const LambDirection<V> direction{args};
      const V u = direction(p, V::load(f.states[0] + k), V::load(f.states[1] + k));
      fnma(V::all(args.step_size), u, p).store(f.param + k);
    });
    if (args.param_copy != nullptr) {
      write_copy(f.param, args.param_copy, args.copy_type, i, n);
    }
  }
}

} // namespace
} // namespace trireme::kernels
