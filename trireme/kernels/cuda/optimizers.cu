#include <trireme/kernels/cuda/cuda_kernels.h>

#include <trireme/kernels/optimizer_rules.h>
#include <trireme/kernels/cuda/launch.cuh>
#include <trireme/kernels/cuda/parts.cuh>
#include <trireme/kernels/cuda/warp_block.cuh>

#include <cuda_runtime.h>

namespace trireme::kernels::cuda {
namespace {

constexpr int kNormBlocks = 1024;

/// The factor of the gradients; NaN: change nothing.
__device__ inline Lane scale_of(const StepArgs& args) {
  return {args.device_grad_scale != nullptr ? *args.device_grad_scale : args.grad_scale};
}
__device__ inline bool is_nan(Lane a) {
  return a.x != a.x;
}

template <class Rule, int kState>
using StateOf = StateBits<Rule::kSigned[kState]>;

/// This thread's parameters, gradients and states: those that the rule has, old and new.
template <class Rule, class Args>
struct Elements {
  Bits p, g;
  StateOf<Rule, 0> s0;
  StateOf<Rule, 1> s1;
  StateOf<Rule, 2> s2;
  Lane grad[kEach];      ///< as the rule's first() leaves it
  float state[3][kEach]; ///< new and not rounded

  __device__ Elements(const Args& args, const WarpBlock& block) {
    g = Bits::load(args.grad, args.grad_type, block);
    p = Bits::load(args.param, Element::f32, block);
    if constexpr (Rule::kStates > 0) {
      s0 = StateOf<Rule, 0>::load(Rule::state(args, 0), block);
    }
    if constexpr (Rule::kStates > 1) {
      s1 = StateOf<Rule, 1>::load(Rule::state(args, 1), block);
    }
    if constexpr (Rule::kStates > 2) {
      s2 = StateOf<Rule, 2>::load(Rule::state(args, 2), block);
    }
  }

  /// Steps the states by the rule, and rounds them.
  __device__ void step(const Rule& rule, const Args& args, const WarpBlock& block, Lane scale) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      grad[k] = Lane{g.value(args.grad_type, k)} * scale;
      if constexpr (Rule::kDecayInGradient) {
        grad[k] = rule.gradient(grad[k], {p.value(Element::f32, k)});
      }
      state[0][k] = state[1][k] = state[2][k] = grad[k].x;
      if constexpr (Rule::kStates > 0) {
        state[0][k] = rule.first(grad[k], {s0.value(Rule::state(args, 0).type, k)}).x;
      }
      if constexpr (Rule::kStates > 1) {
        state[1][k] = rule.second(grad[k], {state[0][k]}, {s1.value(Rule::state(args, 1).type, k)}).x;
      }
      if constexpr (Rule::kStates > 2) {
        state[2][k] = rule.third(grad[k], {state[0][k]}, {state[1][k]}, {s2.value(Rule::state(args, 2).type, k)}).x;
      }
    }
    if constexpr (Rule::kStates > 0) {
      s0 = StateOf<Rule, 0>::of(state[0], Rule::state(args, 0).type, block, args.seed);
    }
    if constexpr (Rule::kStates > 1) {
      s1 = StateOf<Rule, 1>::of(state[1], Rule::state(args, 1).type, block, args.seed);
    }
    if constexpr (Rule::kStates > 2) {
      s2 = StateOf<Rule, 2>::of(state[2], Rule::state(args, 2).type, block, args.seed);
    }
  }

  __device__ void store_states(const Args& args, const WarpBlock& block) const {
    if constexpr (Rule::kStates > 0) {
      s0.store(Rule::state(args, 0), block);
    }
    if constexpr (Rule::kStates > 1) {
      s1.store(Rule::state(args, 1), block);
    }
    if constexpr (Rule::kStates > 2) {
      s2.store(Rule::state(args, 2), block);
    }
  }
};

/// Writes parameters and, where there is one, their copy.
__device__ inline void store_params(const Lane (&p)[kEach], const StepArgs& args, const WarpBlock& block) {
  Bits stepped, copy;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    stepped.round(Element::f32, k, p[k].x);
    copy.round(args.copy_type, k, p[k].x);
  }
  stepped.store(args.param, Element::f32, block);
  if (args.param_copy != nullptr) {
    copy.store(args.param_copy, args.copy_type, block);
  }
}

template <class Rule>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    step_kernel(const __grid_constant__ typename Rule::Args given, const __grid_constant__ Parts parts) {
  const Parts::Part& part = own_part(parts);
  const typename Rule::Args args = args_of(given, part.segment, own_row(given, parts, part));
  const Rule rule(args);
  const Lane scale = scale_of(args);
  if (is_nan(scale)) {
    return;
  }
  each_block_of(part, [&](const WarpBlock& block) {
    Elements<Rule, typename Rule::Args> own(args, block);
    own.step(rule, args, block, scale);
    Lane p[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      p[k] = rule.param({own.p.value(Element::f32, k)}, own.grad[k], {own.state[0][k]}, {own.state[1][k]},
                        {own.state[2][k]});
    }
    own.store_states(args, block);
    store_params(p, args, block);
  });
}

template <template <class> class Rule>
void step(const typename Rule<Lane>::Args& args, const Segment* segments, int64_t count, void* stream,
          const char* name) {
  in_launches<Rule<Lane>>(args, segments, count, kMostBlocks, [&](const Parts& parts) {
    TRIREME_LAUNCH(step_kernel<Rule<Lane>>, static_cast<unsigned>(parts.blocks), kThreads,
                   static_cast<cudaStream_t>(stream))
    (args, parts);
    check_launch(name);
  });
}

template <bool kSigned>
__global__ void decode_kernel(const StateArray state, int64_t n, float* to, bool aligned) {
  each_block(0, n, aligned, [&](const WarpBlock& block) {
    const auto own = StateBits<kSigned>::load(state, block);
    Bits decoded;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      decoded.round(Element::f32, k, own.value(state.type, k));
    }
    decoded.store(to, Element::f32, block);
  });
}

template <bool kSigned>
__global__ void encode_kernel(const StateArray state, int64_t n, const float* from, bool aligned) {
  each_block(0, n, aligned, [&](const WarpBlock& block) {
    const Bits given = Bits::load(from, Element::f32, block);
    float x[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      x[k] = given.value(Element::f32, k);
    }
    StateBits<kSigned>::of(x, state.type, block, kToNearest).store(state, block);
  });
}

/// Adds the block's values in a fixed order; thread 0 has the result.
__device__ inline double sum_of_block(double x, double* room) {
  __syncthreads();
  room[threadIdx.x] = x;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) {
      room[threadIdx.x] += room[threadIdx.x + half];
    }
  }
  return room[0];
}

__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    squared_norm_kernel(const void* x, Element type, int64_t n, double* partials, bool aligned) {
  __shared__ double room[kThreads];
  double sum = 0;
  each_block(0, n, aligned, [&](const WarpBlock& block) {
    const Bits own = Bits::load(x, type, block); // 0 past the end
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const double value = own.value(type, k);
      sum = ::fma(value, value, sum);
    }
  });
  sum = sum_of_block(sum, room);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = sum;
  }
}

/// Adds the partial sums to *total.
__global__ void add_partials_kernel(const double* partials, int count, double* total) {
  __shared__ double room[kThreads];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    sum += partials[i];
  }
  sum = sum_of_block(sum, room);
  if (threadIdx.x == 0) {
    *total += sum;
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    lamb_moments_kernel(const __grid_constant__ LambArgs given, const __grid_constant__ Parts parts, double* partials) {
  __shared__ double room[kThreads];
  const Parts::Part& part = own_part(parts);
  const LambArgs args = args_of(given, part.segment, own_row(given, parts, part));
  const LambMoments<Lane> rule(args);
  const LambDirection<Lane> direction(args);
  const Lane scale = scale_of(args);
  const bool skips = is_nan(scale); // the partial sums are read anyway
  double params = 0;
  double updates = 0;
  each_block_of(part, [&](const WarpBlock& block) {
    if (skips) {
      return;
    }
    Elements<LambMoments<Lane>, LambArgs> own(args, block);
    own.step(rule, args, block, scale);
    own.store_states(args, block);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (block.inside(k)) { // with rounded states, because phase 2 reads those
        const Lane p = {own.p.value(Element::f32, k)};
        const Lane u = direction(p, {own.s0.value(args.exp_avg.type, k)}, {own.s1.value(args.exp_avg_sq.type, k)});
        params = ::fma(static_cast<double>(p.x), static_cast<double>(p.x), params);
        updates = ::fma(static_cast<double>(u.x), static_cast<double>(u.x), updates);
      }
    }
  });
  params = sum_of_block(params, room);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = params;
  }
  updates = sum_of_block(updates, room);
  if (threadIdx.x == 0) {
    partials[kMostBlocks + blockIdx.x] = updates;
  }
}

/// Block (p, i): adds the partial sums of part p to its parameter's sum i.
__global__ void add_part_sums_kernel(const __grid_constant__ Parts parts, const double* partials, double* sums) {
  __shared__ double room[kThreads];
  const Parts::Part& part = parts.parts[blockIdx.x];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < part.blocks; i += kThreads) {
    sum += partials[blockIdx.y * kMostBlocks + part.first_block + i];
  }
  sum = sum_of_block(sum, room);
  if (threadIdx.x == 0) {
    sums[2 * part.segment.parameter + blockIdx.y] += sum;
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    lamb_apply_kernel(const __grid_constant__ LambArgs given, const __grid_constant__ Parts parts,
                      const double* all_sums, const LambScale scale) {
  const Parts::Part& part = own_part(parts);
  const StepScalars* const row = own_row(given, parts, part);
  const LambArgs args = args_of(given, part.segment, row);
  const LambDirection<Lane> direction(args);
  const double* const sums = all_sums + 2 * part.segment.parameter;
  const double rate = row != nullptr ? row->lr_times_correction : scale.lr_times_correction;
  if (is_nan(scale_of(args))) {
    return;
  }
  double ratio = 1;
  if (sums[0] > 0 && sums[1] > 0) {
    ratio = ::sqrt(sums[0]) / ::sqrt(sums[1]);
    ratio = ratio < scale.min_coeff ? scale.min_coeff : ratio > scale.max_coeff ? scale.max_coeff : ratio;
  }
  const Lane step_size = {static_cast<float>(rate * ratio)};
  each_block_of(part, [&](const WarpBlock& block) {
    const Bits params = Bits::load(args.param, Element::f32, block);
    const auto m = StateOf<LambMoments<Lane>, 0>::load(args.exp_avg, block);
    const auto v = StateOf<LambMoments<Lane>, 1>::load(args.exp_avg_sq, block);
    Lane stepped[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const Lane p = {params.value(Element::f32, k)};
      const Lane u = direction(p, {m.value(args.exp_avg.type, k)}, {v.value(args.exp_avg_sq.type, k)});
      stepped[k] = fnma(step_size, u, p);
    }
    store_params(stepped, args, block);
  });
}

} // namespace

void adam(const AdamArgs& args, const Segment* segments, int64_t count, void* stream) {
  args.weight_decay != 0 ? step<AdamDecayed>(args, segments, count, stream, "adam")
                         : step<Adam>(args, segments, count, stream, "adam");
}

void sgd(const SgdArgs& args, const Segment* segments, int64_t count, void* stream) {
  if (args.momentum_buffer.values == nullptr) {
    step<SgdPlain>(args, segments, count, stream, "sgd");
  } else if (args.nesterov) {
    step<SgdNesterov>(args, segments, count, stream, "sgd");
  } else {
    step<SgdHeavyBall>(args, segments, count, stream, "sgd");
  }
}

void lion(const LionArgs& args, const Segment* segments, int64_t count, void* stream) {
  step<Lion>(args, segments, count, stream, "lion");
}

void adagrad(const AdagradArgs& args, const Segment* segments, int64_t count, void* stream) {
  step<Adagrad>(args, segments, count, stream, "adagrad");
}

void rmsprop(const RmspropArgs& args, const Segment* segments, int64_t count, void* stream) {
  const bool momentum = args.momentum_buffer.values != nullptr;
  if (args.grad_avg.values != nullptr) {
    momentum ? step<RmspropCenteredMomentum>(args, segments, count, stream, "rmsprop")
             : step<RmspropCentered>(args, segments, count, stream, "rmsprop");
  } else {
    momentum ? step<RmspropMomentum>(args, segments, count, stream, "rmsprop")
             : step<Rmsprop>(args, segments, count, stream, "rmsprop");
  }
}

void decode_state(const StateArray& state, bool is_signed, int64_t n, float* to, void* stream) {
  if (n <= 0) {
    return;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  if (is_signed) {
    TRIREME_LAUNCH(decode_kernel<true>, blocks_for(n), kThreads, on)(state, n, to,
                                                                     is_aligned(state) && is_aligned(to, Element::f32));
  } else {
    TRIREME_LAUNCH(decode_kernel<false>, blocks_for(n), kThreads, on)(
        state, n, to, is_aligned(state) && is_aligned(to, Element::f32));
  }
  check_launch("decode_state");
}

void encode_state(const StateArray& state, bool is_signed, int64_t n, const float* from, void* stream) {
  if (n <= 0) {
    return;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  if (is_signed) {
    TRIREME_LAUNCH(encode_kernel<true>, blocks_for(n), kThreads, on)(
        state, n, from, is_aligned(state) && is_aligned(from, Element::f32));
  } else {
    TRIREME_LAUNCH(encode_kernel<false>, blocks_for(n), kThreads, on)(
        state, n, from, is_aligned(state) && is_aligned(from, Element::f32));
  }
  check_launch("encode_state");
}

void squared_norm(const void* x, Element type, int64_t n, double* partials, double* sum, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (n <= 0) {
    return;
  }
  const unsigned blocks = blocks_for(n, kNormBlocks);
  TRIREME_LAUNCH(squared_norm_kernel, blocks, kThreads, on)(x, type, n, partials, is_aligned(x, type));
  TRIREME_LAUNCH(add_partials_kernel, 1, kThreads, on)(partials, static_cast<int>(blocks), sum);
  check_launch("squared_norm");
}

void lamb_moments(const LambArgs& args, const Segment* segments, int64_t count, double* partials, double* sums,
                  void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  in_launches<LambMoments<Lane>>(args, segments, count, kNormBlocks, [&](const Parts& parts) {
    TRIREME_LAUNCH(lamb_moments_kernel, static_cast<unsigned>(parts.blocks), kThreads, on)(args, parts, partials);
    TRIREME_LAUNCH(add_part_sums_kernel, dim3(static_cast<unsigned>(parts.count), 2), kThreads, on)
    (parts, partials, sums);
    check_launch("lamb_moments");
  });
}

void lamb_apply(const LambArgs& args, const Segment* segments, int64_t count, const double* sums,
                const LambScale& scale, void* stream) {
  in_launches<LambMoments<Lane>>(args, segments, count, kMostBlocks, [&](const Parts& parts) {
    TRIREME_LAUNCH(lamb_apply_kernel, static_cast<unsigned>(parts.blocks), kThreads, static_cast<cudaStream_t>(stream))
    (args, parts, sums, scale);
    check_launch("lamb_apply");
  });
}

} // namespace trireme::kernels::cuda
