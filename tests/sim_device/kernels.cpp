// The optimizers' kernels of the simulated device: the CPU's on the kernels' mapping, so that results are the CPU's
// bits.
#include "sim_device.h"

#include <trireme/optim/device_kernels.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

namespace trireme::sim {
namespace {

using kernels::Element;
using kernels::StateArray;
using optim::kCpuKernels;

int64_t bytes_of(Element type) {
  return type == Element::f32 ? 4 : type == Element::u8 ? 1 : 2;
}

std::atomic<int64_t> waits_before_optimizer = 0;

template <class T>
T* on_cpu(T* pointer) {
  return pointer == nullptr ? nullptr : static_cast<T*>(kernel_pointer(pointer));
}

/// What one kernel touches; the pointers it was given become those of the other mapping.
class Call {
 public:
  explicit Call(int64_t n) : n_(n), blocks_((n + kernels::kStateBlock - 1) / kernels::kStateBlock) {}
  explicit Call(std::span<const optim::Segment> segments) : Call(0) {
    for (const optim::Segment& segment : segments) {
      n_ = std::max(n_, segment.end);
      blocks_ = std::max(blocks_, segment.first_block +
                                      (segment.end - segment.begin + kernels::kStateBlock - 1) / kernels::kStateBlock);
      rows_ = std::max(rows_, segment.row + 1);
    }
  }

  template <class T>
  T* touch(T* pointer, int64_t bytes, bool writes) {
    if (pointer != nullptr && bytes > 0) {
      touched_.push_back({pointer, bytes, writes});
    }
    return on_cpu(pointer);
  }
  StateArray state(const StateArray& state, bool writes) {
    return {touch(state.values, n_ * bytes_of(state.type), writes), state.type,
            touch(state.scales, 4 * blocks_, writes)};
  }
  template <class Args>
  Args common(const Args& args, bool writes_param) {
    waits_before_optimizer = host_synchronisations();
    Args own = args;
    own.param = touch(args.param, 4 * n_, writes_param);
    own.grad = touch(args.grad, n_ * bytes_of(args.grad_type), false);
    own.param_copy = touch(args.param_copy, n_ * bytes_of(args.copy_type), true);
    own.device_grad_scale = touch(args.device_grad_scale, 4, false);
    own.step_scalars = touch(args.step_scalars, 4 * kernels::kStepScalars * rows_, false);
    return own;
  }
  /// `kernel` reads its segments from a copy: a recorded one runs after the caller's are gone.
  template <class F>
  void launch(const char* name, const F& kernel) const {
    sim::launch(name, touched_, kernel);
  }

 private:
  int64_t n_;
  int64_t blocks_; // of scales
  int64_t rows_ = 1;
  std::vector<Touched> touched_;
};

std::vector<optim::Segment> copied(std::span<const optim::Segment> segments) {
  return {segments.begin(), segments.end()};
}

void adam(const kernels::AdamArgs& args, std::span<const optim::Segment> segments, at::Device) {
  Call call(segments);
  kernels::AdamArgs own = call.common(args, true);
  own.exp_avg = call.state(args.exp_avg, true);
  own.exp_avg_sq = call.state(args.exp_avg_sq, true);
  call.launch("adam", [=, own_segments = copied(segments)] { kCpuKernels.adam(own, own_segments, at::kCPU); });
}

void sgd(const kernels::SgdArgs& args, std::span<const optim::Segment> segments, at::Device) {
  Call call(segments);
  kernels::SgdArgs own = call.common(args, true);
  own.momentum_buffer = call.state(args.momentum_buffer, true);
  call.launch("sgd", [=, own_segments = copied(segments)] { kCpuKernels.sgd(own, own_segments, at::kCPU); });
}

void lion(const kernels::LionArgs& args, std::span<const optim::Segment> segments, at::Device) {
  Call call(segments);
  kernels::LionArgs own = call.common(args, true);
  own.exp_avg = call.state(args.exp_avg, true);
  call.launch("lion", [=, own_segments = copied(segments)] { kCpuKernels.lion(own, own_segments, at::kCPU); });
}

void adagrad(const kernels::AdagradArgs& args, std::span<const optim::Segment> segments, at::Device) {
  Call call(segments);
  kernels::AdagradArgs own = call.common(args, true);
  own.sum = call.state(args.sum, true);
  call.launch("adagrad", [=, own_segments = copied(segments)] { kCpuKernels.adagrad(own, own_segments, at::kCPU); });
}

void rmsprop(const kernels::RmspropArgs& args, std::span<const optim::Segment> segments, at::Device) {
  Call call(segments);
  kernels::RmspropArgs own = call.common(args, true);
  own.square_avg = call.state(args.square_avg, true);
  own.grad_avg = call.state(args.grad_avg, true);
  own.momentum_buffer = call.state(args.momentum_buffer, true);
  call.launch("rmsprop", [=, own_segments = copied(segments)] { kCpuKernels.rmsprop(own, own_segments, at::kCPU); });
}

int64_t sums_of(std::span<const optim::Segment> segments) {
  int64_t last = -1;
  for (const optim::Segment& segment : segments) {
    last = std::max(last, segment.parameter);
  }
  return 2 * (last + 1);
}

kernels::LambArgs lamb(Call& call, const kernels::LambArgs& args, bool first_phase) {
  kernels::LambArgs own = call.common(args, !first_phase);
  own.exp_avg = call.state(args.exp_avg, first_phase);
  own.exp_avg_sq = call.state(args.exp_avg_sq, first_phase);
  return own;
}

void lamb_moments(const kernels::LambArgs& args, std::span<const optim::Segment> segments, double* sums, at::Device) {
  Call call(segments);
  const kernels::LambArgs own = lamb(call, args, true);
  double* const own_sums = call.touch(sums, 8 * sums_of(segments), true);
  call.launch("lamb_moments", [=, own_segments = copied(segments)] {
    kCpuKernels.lamb_moments(own, own_segments, own_sums, at::kCPU);
  });
}

void lamb_apply(const kernels::LambArgs& args, std::span<const optim::Segment> segments, const double* sums,
                const kernels::LambScale& scale, at::Device) {
  Call call(segments);
  const kernels::LambArgs own = lamb(call, args, false);
  const double* const own_sums = call.touch(sums, 8 * sums_of(segments), false);
  call.launch("lamb_apply", [=, own_segments = copied(segments)] {
    kCpuKernels.lamb_apply(own, own_segments, own_sums, scale, at::kCPU);
  });
}

void add_squared_norm(const void* x, Element type, int64_t n, double* sum, at::Device) {
  Call call(n);
  const void* const own = call.touch(x, n * bytes_of(type), false);
  double* const own_sum = call.touch(sum, 8, true);
  call.launch("squared_norm", [=] { kCpuKernels.add_squared_norm(own, type, n, own_sum, at::kCPU); });
}

void decode_states(const StateArray& state, bool is_signed, int64_t n, float* to, at::Device) {
  Call call(n);
  const StateArray own = call.state(state, false);
  float* const own_to = call.touch(to, 4 * n, true);
  call.launch("decode_states", [=] { kCpuKernels.decode_states(own, is_signed, n, own_to, at::kCPU); });
}

void encode_states(const StateArray& state, bool is_signed, int64_t n, const float* from, at::Device) {
  Call call(n);
  const StateArray own = call.state(state, true);
  const float* const own_from = call.touch(from, 4 * n, false);
  call.launch("encode_states", [=] { kCpuKernels.encode_states(own, is_signed, n, own_from, at::kCPU); });
}

const optim::DeviceKernels kKernels = {
    adam, sgd, lion, adagrad, rmsprop, lamb_moments, lamb_apply, add_squared_norm, decode_states, encode_states};

} // namespace

int64_t host_synchronisations_before_optimizer() {
  return waits_before_optimizer;
}

void use_cpu_optimizer_kernels() {
  optim::register_kernels(c10::kPrivateUse1, kKernels);
}

} // namespace trireme::sim
