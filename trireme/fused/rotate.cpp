#include <trireme/fused/fused.h>
#include <trireme/fused/rows.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernels::RotaryArgs args_of(const at::Tensor& x, const at::Tensor& y, const at::Tensor& cos, const at::Tensor& sin,
                            double sign) {
  kernels::RotaryArgs args;
  args.x = x.const_data_ptr();
  args.x_at = strides_of(x);
  args.y = y.mutable_data_ptr();
  args.y_at = strides_of(y);
  args.cos = cos.const_data_ptr<float>();
  args.sin = sin.const_data_ptr<float>();
  args.sign = static_cast<float>(sign);
  args.tokens = x.size(2);
  args.heads = x.size(1);
  args.head_size = x.size(3);
  args.element = element_of(x);
  return args;
}

at::Tensor aten_rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  const at::Tensor c = cos.to(x.scalar_type()), s = sin.to(x.scalar_type());
  return at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1);
}

variable_list rotated(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin,
                      double sign) {
  const RowKernels* const there = row_kernels({q, k, cos, sin});
  if (there == nullptr) {
    const at::Tensor turned = sign < 0 ? sin.neg() : sin;
    return {aten_rotate(q, cos, turned), aten_rotate(k, cos, turned)};
  }
  const auto rows = [](const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous(); };
  const auto like = [](const at::Tensor& x) { // in memory [B, T, A, D]
    return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
  };
  const at::Tensor q_in = rows(q), k_in = rows(k), q_out = like(q), k_out = like(k);
  const int64_t rows_of_heads = q.size(0) * q.size(2);
  there->rotary(args_of(q_in, q_out, cos, sin, sign), rows_of_heads, q.device());
  there->rotary(args_of(k_in, k_out, cos, sin, sign), rows_of_heads, k.device());
  return {q_out, k_out};
}

// The table is no activation of a layer: hooks for saved tensors (memory/activations) must not see it.
struct Rotate : torch::autograd::Function<Rotate> {
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& cos, const at::Tensor& sin, double sign) {
    context->saved_data["cos"] = cos;
    context->saved_data["sin"] = sin;
    context->saved_data["sign"] = sign;
    return rotated(q, k, cos, sin, sign);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = [&](const char* name) { return context->saved_data[name]; };
    const variable_list back =
        Rotate::apply(grads[0], grads[1], saved("cos").toTensor(), saved("sin").toTensor(), -saved("sign").toDouble());
    return {back[0], back[1], {}, {}, {}};
  }
};

} // namespace

std::pair<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                         const at::Tensor& sin) {
  const auto fits = [&](const at::Tensor& x) {
    return x.dim() == 4 && x.size(3) % 2 == 0 && x.size(3) / 2 == cos.size(1) && x.size(2) == cos.size(0);
  };
  if (cos.dim() != 2 || cos.sizes() != sin.sizes() || !fits(q) || !fits(k) || q.size(0) != k.size(0) ||
      q.scalar_type() != k.scalar_type()) {
    throw InputError(
        "fused", concat("rotate: q and k must be [B, heads, T, D] of one type, cos and sin [T, D / 2]; got ", q.sizes(),
                        ", ", k.sizes(), ", ", cos.sizes(), " and ", sin.sizes(), '.'));
  }
  const auto floats = [](const at::Tensor& x) { return x.to(at::kFloat).contiguous(); };
  const variable_list both = Rotate::apply(q, k, floats(cos), floats(sin), 1.0);
  return {both[0], both[1]};
}

} // namespace trireme::fused
