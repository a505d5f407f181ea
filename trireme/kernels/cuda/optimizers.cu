#include <trireme/kernels/cuda/cuda_kernels.h>

#include <trireme/kernels/optimizer_rules.h>
#include <trireme/kernels/cuda/lane.cuh>
#include <trireme/kernels/cuda/launch.cuh>

#include <cuda_runtime.h>

namespace trireme::kernels::cuda {
namespace {

constexpr int64_t kMostBlocks = 4096;
constexpr int kNormBlocks = static_cast<int>(kPartials / 2);
constexpr int kThreads = static_cast<int>(kStateBlock);

unsigned blocks_for(int64_t elements, int64_t most = kMostBlocks) {
  const int64_t blocks = (elements + kStateBlock - 1) / kStateBlock;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

/// Reads all states of element i, steps them by the rule and writes them. Sets g as the rule's first() leaves it.
template <class Rule, class Args>
__device__ inline void step_states(const Rule& rule, const Args& args, int64_t i, bool inside, Lane& g, Lane (&s)[3],
                                   uint32_t* room) {
  if constexpr (Rule::kStates > 0) {
    const StateArray& state = Rule::state(args, 0);
    s[0] = rule.first(g, {inside ? read_state<Rule::kSigned[0]>(state, i) : 0});
    write_state<Rule::kSigned[0]>(state, i, inside, s[0].x, args.seed, room);
  }
  if constexpr (Rule::kStates > 1) {
    const StateArray& state = Rule::state(args, 1);
    s[1] = rule.second(g, s[0], {inside ? read_state<Rule::kSigned[1]>(state, i) : 0});
    __syncthreads();
    write_state<Rule::kSigned[1]>(state, i, inside, s[1].x, args.seed, room);
  }
  if constexpr (Rule::kStates > 2) {
    const StateArray& state = Rule::state(args, 2);
    s[2] = rule.third(g, s[0], s[1], {inside ? read_state<Rule::kSigned[2]>(state, i) : 0});
    __syncthreads();
    write_state<Rule::kSigned[2]>(state, i, inside, s[2].x, args.seed, room);
  }
}

/// The factor of the gradients; NaN: change nothing.
__device__ inline Lane scale_of(const StepArgs& args) {
  return {args.device_grad_scale != nullptr ? *args.device_grad_scale : args.grad_scale};
}
__device__ inline bool is_nan(Lane a) {
  return a.x != a.x;
}

template <class Rule>
__device__ inline Lane gradient_of(const Rule& rule, const typename Rule::Args& args, Lane scale, int64_t i,
                                   bool inside) {
  Lane g = Lane{inside ? read(args.grad, args.grad_type, i) : 0} * scale;
  if constexpr (Rule::kDecayInGradient) {
    g = rule.gradient(g, {inside ? args.param[i] : 0});
  }
  return g;
}

template <class Rule>
__global__ void step_kernel(const Rule rule, const typename Rule::Args args, int64_t begin, int64_t end) {
  __shared__ uint32_t room[kThreads / 32];
  const Lane scale = scale_of(args);
  if (is_nan(scale)) {
    return;
  }
  for (int64_t first = begin + blockIdx.x * kStateBlock; first < end; first += gridDim.x * kStateBlock) {
    const int64_t i = first + threadIdx.x;
    const bool inside = i < end;
    Lane g = gradient_of(rule, args, scale, i, inside);
    Lane s[3] = {g, g, g};
    step_states(rule, args, i, inside, g, s, room);
    if (inside) {
      const Lane p = rule.param({args.param[i]}, g, s[0], s[1], s[2]);
      args.param[i] = p.x;
      if (args.param_copy != nullptr) {
        write(args.param_copy, args.copy_type, i, p.x);
      }
    }
  }
}

template <template <class> class Rule>
void step(const typename Rule<Lane>::Args& args, int64_t begin, int64_t end, void* stream, const char* name) {
  if (begin >= end) {
    return;
  }
  TRIREME_LAUNCH(step_kernel<Rule<Lane>>, blocks_for(end - begin), kThreads, static_cast<cudaStream_t>(stream))(
      Rule<Lane>(args), args, begin, end);
  check_launch(name);
}

template <bool kSigned>
__global__ void decode_kernel(const StateArray state, int64_t n, float* to) {
  for (int64_t i = blockIdx.x * kStateBlock + threadIdx.x; i < n; i += gridDim.x * kStateBlock) {
    to[i] = read_state<kSigned>(state, i);
  }
}

template <bool kSigned>
__global__ void encode_kernel(const StateArray state, int64_t n, const float* from) {
  __shared__ uint32_t room[kThreads / 32];
  for (int64_t first = blockIdx.x * kStateBlock; first < n; first += gridDim.x * kStateBlock) {
    const int64_t i = first + threadIdx.x;
    write_state<kSigned>(state, i, i < n, i < n ? from[i] : 0, kToNearest, room);
  }
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

__global__ void squared_norm_kernel(const void* x, Element type, int64_t n, double* partials) {
  __shared__ double room[kThreads];
  double sum = 0;
  for (int64_t i = blockIdx.x * kStateBlock + threadIdx.x; i < n; i += gridDim.x * kStateBlock) {
    const double value = read(x, type, i);
    sum = ::fma(value, value, sum);
  }
  sum = sum_of_block(sum, room);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = sum;
  }
}

/// Block b adds the first `count` partial sums from b * kNormBlocks to sums[b].
__global__ void add_partials_kernel(const double* partials, int count, double* sums) {
  __shared__ double room[kThreads];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    sum += partials[blockIdx.x * kNormBlocks + i];
  }
  sum = sum_of_block(sum, room);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] += sum;
  }
}

__global__ void lamb_moments_kernel(const LambMoments<Lane> rule, const LambDirection<Lane> direction,
                                    const LambArgs args, int64_t begin, int64_t end, double* partials) {
  __shared__ uint32_t room[kThreads / 32];
  __shared__ double sums_room[kThreads];
  const Lane scale = scale_of(args);
  if (is_nan(scale)) {
    end = begin; // the partial sums are read anyway
  }
  double params = 0;
  double updates = 0;
  for (int64_t first = begin + blockIdx.x * kStateBlock; first < end; first += gridDim.x * kStateBlock) {
    const int64_t i = first + threadIdx.x;
    const bool inside = i < end;
    Lane g = gradient_of(rule, args, scale, i, inside);
    Lane s[3] = {g, g, g};
    step_states(rule, args, i, inside, g, s, room);
    if (inside) {
      // Uses rounded states as stored, because phase 2 reads those.
      const Lane p = {args.param[i]};
      const Lane u = direction(p, {read(args.exp_avg.values, args.exp_avg.type, i)},
                               {read(args.exp_avg_sq.values, args.exp_avg_sq.type, i)});
      params = ::fma(static_cast<double>(p.x), static_cast<double>(p.x), params);
      updates = ::fma(static_cast<double>(u.x), static_cast<double>(u.x), updates);
    }
  }
  params = sum_of_block(params, sums_room);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = params;
  }
  updates = sum_of_block(updates, sums_room);
  if (threadIdx.x == 0) {
    partials[kNormBlocks + blockIdx.x] = updates;
  }
}

__global__ void lamb_apply_kernel(const LambDirection<Lane> direction, const LambArgs args, int64_t begin, int64_t end,
                                  const double* sums, const LambScale scale) {
  if (is_nan(scale_of(args))) {
    return;
  }
  double ratio = 1;
  if (sums[0] > 0 && sums[1] > 0) {
    ratio = ::sqrt(sums[0]) / ::sqrt(sums[1]);
    ratio = ratio < scale.min_coeff ? scale.min_coeff : ratio > scale.max_coeff ? scale.max_coeff : ratio;
  }
  const Lane step_size = {static_cast<float>(scale.lr_times_correction * ratio)};
  for (int64_t i = begin + blockIdx.x * kStateBlock + threadIdx.x; i < end; i += gridDim.x * kStateBlock) {
    const Lane p = {args.param[i]};
    const Lane u = direction(p, {read(args.exp_avg.values, args.exp_avg.type, i)},
                             {read(args.exp_avg_sq.values, args.exp_avg_sq.type, i)});
    const Lane stepped = fnma(step_size, u, p);
    args.param[i] = stepped.x;
    if (args.param_copy != nullptr) {
      write(args.param_copy, args.copy_type, i, stepped.x);
    }
  }
}

} // namespace

void adam(const AdamArgs& args, int64_t begin, int64_t end, void* stream) {
  args.weight_decay != 0 ? step<AdamDecayed>(args, begin, end, stream, "adam")
                         : step<Adam>(args, begin, end, stream, "adam");
}

void sgd(const SgdArgs& args, int64_t begin, int64_t end, void* stream) {
  if (args.momentum_buffer.values == nullptr) {
    step<SgdPlain>(args, begin, end, stream, "sgd");
  } else if (args.nesterov) {
    step<SgdNesterov>(args, begin, end, stream, "sgd");
  } else {
    step<SgdHeavyBall>(args, begin, end, stream, "sgd");
  }
}

void lion(const LionArgs& args, int64_t begin, int64_t end, void* stream) {
  step<Lion>(args, begin, end, stream, "lion");
}

void adagrad(const AdagradArgs& args, int64_t begin, int64_t end, void* stream) {
  step<Adagrad>(args, begin, end, stream, "adagrad");
}

void rmsprop(const RmspropArgs& args, int64_t begin, int64_t end, void* stream) {
  const bool momentum = args.momentum_buffer.values != nullptr;
  if (args.grad_avg.values != nullptr) {
    momentum ? step<RmspropCenteredMomentum>(args, begin, end, stream, "rmsprop")
             : step<RmspropCentered>(args, begin, end, stream, "rmsprop");
  } else {
    momentum ? step<RmspropMomentum>(args, begin, end, stream, "rmsprop")
             : step<Rmsprop>(args, begin, end, stream, "rmsprop");
  }
}

void decode_state(const StateArray& state, bool is_signed, int64_t n, float* to, void* stream) {
  if (n <= 0) {
    return;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  if (is_signed) {
    TRIREME_LAUNCH(decode_kernel<true>, blocks_for(n), kThreads, on)(state, n, to);
  } else {
    TRIREME_LAUNCH(decode_kernel<false>, blocks_for(n), kThreads, on)(state, n, to);
  }
  check_launch("decode_state");
}

void encode_state(const StateArray& state, bool is_signed, int64_t n, const float* from, void* stream) {
  if (n <= 0) {
    return;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  if (is_signed) {
    TRIREME_LAUNCH(encode_kernel<true>, blocks_for(n), kThreads, on)(state, n, from);
  } else {
    TRIREME_LAUNCH(encode_kernel<false>, blocks_for(n), kThreads, on)(state, n, from);
  }
  check_launch("encode_state");
}

void squared_norm(const void* x, Element type, int64_t n, double* partials, double* sum, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (n <= 0) {
    return;
  }
  const unsigned blocks = blocks_for(n, kNormBlocks);
  TRIREME_LAUNCH(squared_norm_kernel, blocks, kThreads, on)(x, type, n, partials);
  TRIREME_LAUNCH(add_partials_kernel, 1, kThreads, on)(partials, static_cast<int>(blocks), sum);
  check_launch("squared_norm");
}

void lamb_moments(const LambArgs& args, int64_t begin, int64_t end, double* partials, double* sums, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (begin >= end) {
    return;
  }
  const unsigned blocks = blocks_for(end - begin, kNormBlocks);
  TRIREME_LAUNCH(lamb_moments_kernel, blocks, kThreads, on)(LambMoments<Lane>(args), LambDirection<Lane>(args), args,
                                                            begin, end, partials);
  TRIREME_LAUNCH(add_partials_kernel, 2, kThreads, on)(partials, static_cast<int>(blocks), sums);
  check_launch("lamb_moments");
}

void lamb_apply(const LambArgs& args, int64_t begin, int64_t end, const double* sums, const LambScale& scale,
                void* stream) {
  if (begin >= end) {
    return;
  }
  TRIREME_LAUNCH(lamb_apply_kernel, blocks_for(end - begin), kThreads, static_cast<cudaStream_t>(stream))
  (LambDirection<Lane>(args), args, begin, end, sums, scale);
  check_launch("lamb_apply");
}

} // namespace trireme::kernels::cuda
