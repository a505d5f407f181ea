#include <trireme/optim/aten_kernels.h>

#include <trireme/base/error.h>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

namespace trireme::optim {
namespace aten {
namespace {

using kernels::Element;

at::ScalarType scalar_type_of(Element type) {
  return type == Element::bf16  ? at::kBFloat16
         : type == Element::f16 ? at::kHalf
         : type == Element::f64 ? at::kDouble
                                : at::kFloat;
}

/// Elements [begin, end) of an array on the device.
at::Tensor view_of(const void* array, Element type, int64_t begin, int64_t end, at::Device device) {
  const at::ScalarType scalar = scalar_type_of(type);
  char* const first =
      static_cast<char*>(const_cast<void*>(array)) + begin * static_cast<int64_t>(c10::elementSize(scalar));
  return at::for_blob(first, {end - begin})
      .options(at::TensorOptions(scalar).device(device))
      .target_device(device)
      .make_tensor();
}

/// kernels/stochastic.h in 64-bit integers, of which the lower 32 bits count.
at::Tensor stochastic_bf16_of(const at::Tensor& x, uint32_t seed) {
  constexpr int64_t kLow = 0xffffffff;
  const at::Tensor bits = x.contiguous().view(at::kInt).to(at::kLong).bitwise_and_(kLow);
  at::Tensor hash = bits.bitwise_xor(static_cast<int64_t>(seed));
  hash = hash.bitwise_xor_(hash.bitwise_right_shift(16)).mul_(int64_t{0x85ebca6b}).bitwise_and_(kLow);
  hash = hash.bitwise_xor_(hash.bitwise_right_shift(13)).mul_(int64_t{0xc2b2ae35}).bitwise_and_(kLow);
  const at::Tensor rounded = hash.bitwise_right_shift_(16).add_(bits).bitwise_and_(kLow).bitwise_right_shift_(16);
  return at::where(x.isnan(), at::full({}, int64_t{0x7fc0}, rounded.options()), rounded)
      .to(at::kShort)
      .view(at::kBFloat16);
}

[[noreturn]] void refuse_codes(at::Device device) {
  throw Error(
      "optim",
      concat("8-bit optimizer states need Trireme's own kernels, and there are none for tensors on ", device, '.'),
      "Use \"state_dtype\": \"bf16\".");
}

/// Elements [begin, end) of the arrays of a step.
struct StepRange {
  const kernels::StepArgs& args;
  int64_t begin;
  int64_t end;
  at::Device device;

  at::Tensor param() const { return view_of(args.param, Element::f32, begin, end, device); }
  /// One element.
  at::Tensor scale() const {
    return args.device_grad_scale != nullptr
               ? view_of(args.device_grad_scale, Element::f32, 0, 1, device)
               : at::full({1}, args.grad_scale, at::TensorOptions(at::kFloat).device(device));
  }
  /// `after`, or `before` if the call is to change nothing.
  at::Tensor unless_skipped(const at::Tensor& after, const at::Tensor& before) const {
    return args.device_grad_scale == nullptr ? after : at::where(scale().isnan(), before, after);
  }
  void set_param(const at::Tensor& after) const {
    param().copy_(unless_skipped(after, param()));
    copy_param();
  }
  void copy_param() const {
    if (args.param_copy != nullptr) {
      const at::Tensor copy = view_of(args.param_copy, args.copy_type, begin, end, device);
      copy.copy_(unless_skipped(param().to(copy.scalar_type()), copy));
    }
  }
  /// A new array: the gradient in fp32, scaled, with the decay added.
  at::Tensor gradient(float weight_decay) const {
    at::Tensor g = view_of(args.grad, args.grad_type, begin, end, device).to(at::kFloat).mul(scale());
    return weight_decay == 0 ? g : g.add_(param(), weight_decay);
  }
  at::Tensor read(const kernels::StateArray& state) const {
    if (state.type == Element::u8) {
      refuse_codes(device);
    }
    return view_of(state.values, state.type, begin, end, device).to(at::kFloat);
  }
  void write(const kernels::StateArray& state, const at::Tensor& x) const {
    const at::Tensor to = view_of(state.values, state.type, begin, end, device);
    const bool is_stochastic = state.type == Element::bf16 && args.seed != kernels::kToNearest;
    to.copy_(unless_skipped(is_stochastic ? stochastic_bf16_of(x, args.seed) : x.to(to.scalar_type()), to));
  }
};

/// Largest number of elements of a temporary array: 16 MB in fp32.
constexpr int64_t kPiece = int64_t{1} << 22;

template <class F>
void for_pieces(int64_t begin, int64_t end, const F& f) {
  for (int64_t at = begin; at < end; at += kPiece) {
    f(at, std::min(end, at + kPiece));
  }
}

/// The numbers of each segment as ATen's operators need them: on the host, which waits for rows on the device. Empty:
/// the arguments have them.
std::vector<kernels::StepScalars> rows_of(const kernels::StepArgs& args, std::span<const Segment> segments,
                                          at::Device device) {
  std::vector<kernels::StepScalars> rows;
  int64_t count = 0;
  for (const Segment& segment : segments) {
    count = std::max(count, segment.row + 1);
  }
  at::Tensor on_host;
  const kernels::StepScalars* from = args.host_rows;
  if (args.step_scalars != nullptr) {
    on_host = at::for_blob(const_cast<kernels::StepScalars*>(args.step_scalars), {count * kernels::kStepScalars})
                  .options(at::TensorOptions(at::kInt).device(device))
                  .target_device(device)
                  .make_tensor()
                  .to(at::kCPU);
    from = static_cast<const kernels::StepScalars*>(on_host.const_data_ptr());
  }
  for (const Segment& segment : segments) {
    if (from != nullptr) {
      rows.push_back(from[segment.row]);
    }
  }
  return rows;
}

template <class Args>
Args with_row(const Args& args, const std::vector<kernels::StepScalars>& rows, size_t segment) {
  Args own = args;
  if (!rows.empty()) {
    kernels::set_scalars(own, rows[segment]);
  }
  return own;
}

template <auto Step, class Args>
void in_pieces(const Args& given, std::span<const Segment> segments, at::Device device) {
  const auto rows = rows_of(given, segments, device);
  for (size_t s = 0; s < segments.size(); ++s) {
    const Args args = with_row(given, rows, s);
    for_pieces(segments[s].begin, segments[s].end,
               [&](int64_t begin, int64_t end) { Step(args, StepRange{args, begin, end, device}); });
  }
}

/// v = beta v + (1 - beta) g^2.
at::Tensor second_moment(const at::Tensor& v, const at::Tensor& g, float beta, float one_minus_beta) {
  return v.mul(beta).add_(g.mul(one_minus_beta).mul_(g));
}

bool may_be_fused(const kernels::AdamArgs& args, at::Device device) {
  static const auto fused = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_adamw_", "");
  const bool moves = args.one_minus_beta1 > 0 && args.beta2 < 1; // otherwise the bias corrections would divide by zero
  return moves && args.grad_type == Element::f32 && args.exp_avg.type == Element::f32 &&
         args.exp_avg_sq.type == Element::f32 && (args.weight_decay == 0 || args.param_scale == 1) &&
         fused.hasComputedKernelForDispatchKey(at::TensorOptions(device).computeDispatchKey());
}

/// ATen's kernel in one pass. Its bias corrections are 1 at step infinity; those of the arguments are folded into lr
/// and eps.
void fused_adam(const StepRange& part, const kernels::AdamArgs& args) {
  const at::Tensor scale = part.scale();
  const at::Tensor step = at::full_like(scale, std::numeric_limits<float>::infinity());
  const double lr = static_cast<double>(args.step_size) / args.root_scale;
  const double eps = static_cast<double>(args.eps) / args.root_scale;
  const bool decoupled = args.param_scale != 1;
  using Fused = void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                         double, double, double, double, double, bool, bool, const std::optional<at::Tensor>&,
                         const std::optional<at::Tensor>&);
  const Fused run = decoupled ? static_cast<Fused>(at::_fused_adamw_) : static_cast<Fused>(at::_fused_adam_);
  const double decay = !decoupled ? args.weight_decay : lr == 0 ? 0 : (1 - static_cast<double>(args.param_scale)) / lr;
  run({part.param()}, {view_of(args.grad, args.grad_type, part.begin, part.end, part.device)},
      {part.read(args.exp_avg)}, {part.read(args.exp_avg_sq)}, {}, {step}, lr,
      1 - static_cast<double>(args.one_minus_beta1), args.beta2, decay, eps, /*amsgrad=*/false, /*maximize=*/false,
      scale.reciprocal(), scale.isnan().to(at::kFloat));
  part.copy_param();
}

void adam(const kernels::AdamArgs& args, const StepRange& part) {
  if (may_be_fused(args, part.device)) {
    fused_adam(part, args);
    return;
  }
  const at::Tensor g = part.gradient(args.weight_decay);
  at::Tensor m = part.read(args.exp_avg);
  m = m.add(g.sub(m), args.one_minus_beta1);
  const at::Tensor v = second_moment(part.read(args.exp_avg_sq), g, args.beta2, args.one_minus_beta2);
  part.write(args.exp_avg, m);
  part.write(args.exp_avg_sq, v);
  part.set_param(
      part.param().mul(args.param_scale).sub_(m.div_(v.sqrt().mul_(args.root_scale).add_(args.eps)), args.step_size));
}

void sgd(const kernels::SgdArgs& args, const StepRange& part) {
  const at::Tensor g = part.gradient(args.weight_decay);
  at::Tensor step = g;
  if (args.momentum_buffer.values != nullptr) {
    at::Tensor buffer = part.read(args.momentum_buffer);
    buffer = args.first ? g : g.mul(args.one_minus_dampening).add_(buffer, args.momentum);
    part.write(args.momentum_buffer, buffer);
    step = args.nesterov ? g.add(buffer, args.momentum) : buffer;
  }
  part.set_param(part.param().sub(step, args.lr));
}

void lion(const kernels::LionArgs& args, const StepRange& part) {
  const at::Tensor m = part.read(args.exp_avg);
  const at::Tensor change = part.gradient(0).sub_(m);
  const at::Tensor towards = m.add(change, args.one_minus_beta1);
  const at::Tensor direction = at::where(towards.isnan(), towards, towards.sign()); // sign() of NaN is 0
  part.write(args.exp_avg, m.add(change, args.one_minus_beta2));
  part.set_param(part.param().mul(args.param_scale).sub_(direction, args.lr));
}

void adagrad(const kernels::AdagradArgs& args, const StepRange& part) {
  const at::Tensor g = part.gradient(args.weight_decay);
  const at::Tensor sum = part.read(args.sum).add(g.mul(g));
  part.write(args.sum, sum);
  part.set_param(part.param().sub(g.div(sum.sqrt().add_(args.eps)), args.lr));
}

void rmsprop(const kernels::RmspropArgs& args, const StepRange& part) {
  const at::Tensor g = part.gradient(args.weight_decay);
  const at::Tensor square = second_moment(part.read(args.square_avg), g, args.alpha, args.one_minus_alpha);
  part.write(args.square_avg, square);
  at::Tensor variance = square;
  if (args.grad_avg.values != nullptr) {
    const at::Tensor old = part.read(args.grad_avg);
    const at::Tensor average = old.add(g.sub(old), args.one_minus_alpha);
    part.write(args.grad_avg, average);
    variance = square.sub(average.mul(average));
  }
  at::Tensor step = g.div(variance.sqrt().add_(args.eps));
  if (args.momentum_buffer.values != nullptr) {
    step = step.add_(part.read(args.momentum_buffer), args.momentum);
    part.write(args.momentum_buffer, step);
  }
  part.set_param(part.param().sub(step, args.lr));
}

at::Tensor squared_sum(const at::Tensor& x) {
  return x.to(at::kDouble).square_().sum();
}

/// LAMB's u, computed from the states as stored.
at::Tensor lamb_direction(const kernels::LambArgs& args, const StepRange& part) {
  at::Tensor root = part.read(args.exp_avg_sq);
  root = args.eps_inside_root ? root.add(args.eps).sqrt_() : root.sqrt().add_(args.eps);
  return part.read(args.exp_avg).div(root).add_(part.param(), args.weight_decay);
}

void lamb_moments(const kernels::LambArgs& given, std::span<const Segment> segments, double* sums, at::Device device) {
  const auto rows = rows_of(given, segments, device);
  for (size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const kernels::LambArgs args = with_row(given, rows, s);
    const at::Tensor to = view_of(sums, Element::f64, 2 * segment.parameter, 2 * segment.parameter + 2, device);
    for_pieces(segment.begin, segment.end, [&](int64_t begin, int64_t end) {
      const StepRange part{args, begin, end, device};
      const at::Tensor g = part.gradient(0);
      const at::Tensor m = part.read(args.exp_avg);
      part.write(args.exp_avg, m.add(g.sub(m), args.one_minus_beta1));
      part.write(args.exp_avg_sq, second_moment(part.read(args.exp_avg_sq), g, args.beta2, args.one_minus_beta2));
      to.copy_(part.unless_skipped(
          to.add(at::stack({squared_sum(part.param()), squared_sum(lamb_direction(args, part))})), to));
    });
  }
}

void lamb_apply(const kernels::LambArgs& given, std::span<const Segment> segments, const double* sums,
                const kernels::LambScale& scale, at::Device device) {
  const auto rows = rows_of(given, segments, device);
  for (size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const kernels::LambArgs args = with_row(given, rows, s);
    const double rate = rows.empty() ? scale.lr_times_correction : rows[s].lr_times_correction;
    const at::Tensor roots =
        view_of(sums, Element::f64, 2 * segment.parameter, 2 * segment.parameter + 2, device).sqrt();
    const at::Tensor weight = roots.select(0, 0);
    const at::Tensor update = roots.select(0, 1);
    const at::Tensor ratio = weight.div(update).clamp_(scale.min_coeff, scale.max_coeff);
    const at::Tensor usable = weight.gt(0).logical_and_(update.gt(0));
    const at::Tensor step_size = at::where(usable, ratio, at::ones({}, ratio.options())).mul_(rate).to(at::kFloat);
    for_pieces(segment.begin, segment.end, [&](int64_t begin, int64_t end) {
      const StepRange part{args, begin, end, device};
      part.set_param(part.param().sub(lamb_direction(args, part).mul_(step_size)));
    });
  }
}

void add_squared_norm(const void* x, Element type, int64_t n, double* sum, at::Device device) {
  for_pieces(0, n, [&](int64_t begin, int64_t end) {
    view_of(sum, Element::f64, 0, 1, device).add_(squared_sum(view_of(x, type, begin, end, device)));
  });
}

void decode_states(const kernels::StateArray&, bool, int64_t, float*, at::Device device) {
  refuse_codes(device);
}

void encode_states(const kernels::StateArray&, bool, int64_t, const float*, at::Device device) {
  refuse_codes(device);
}

} // namespace
} // namespace aten

const DeviceKernels kAtenKernels = {
    aten::in_pieces<&aten::adam, kernels::AdamArgs>,
    aten::in_pieces<&aten::sgd, kernels::SgdArgs>,
    aten::in_pieces<&aten::lion, kernels::LionArgs>,
    aten::in_pieces<&aten::adagrad, kernels::AdagradArgs>,
    aten::in_pieces<&aten::rmsprop, kernels::RmspropArgs>,
    aten::lamb_moments,
    aten::lamb_apply,
    aten::add_squared_norm,
    aten::decode_states,
    aten::encode_states,
};

} // namespace trireme::optim
