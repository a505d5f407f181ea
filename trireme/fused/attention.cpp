#include <trireme/fused/fused.h>
#include <trireme/fused/rows.h>

#include <torch/autograd.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// This thread's area, kept between calls: fresh pages would cost as much as a tenth of the attention.
float* workspace(int64_t floats) {
  struct Free {
    void operator()(void* p) const {
      std::free(p);
    }
  };
  static thread_local std::unique_ptr<float, Free> area;
  static thread_local int64_t size = 0;
  if (size < floats) {
    area.reset();
    size = 0;
    const size_t bytes = (static_cast<size_t>(floats) * sizeof(float) + 63) / 64 * 64;
    area.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (!area) {
      throw std::bad_alloc();
    }
    size = floats;
  }
  return area.get();
}

kernels::AttentionArgs shape_of(const at::Tensor& qkv, int64_t heads) {
  kernels::AttentionArgs args;
  args.qkv = qkv.const_data_ptr();
  args.length = qkv.size(1);
  args.heads = heads;
  args.head_size = qkv.size(2) / (3 * heads);
  args.scale = 1.0f / std::sqrt(static_cast<float>(args.head_size));
  args.element = element_of(qkv);
  return args;
}

template <class F>
void parallel_heads(const at::Tensor& qkv, const kernels::AttentionArgs& args, bool backward, const F& f) {
  const int64_t floats = kernels::active_fused_kernels().attention_workspace(args.length, args.head_size, backward);
  at::parallel_for(0, args.length == 0 ? 0 : qkv.size(0) * args.heads, 1, [&](int64_t begin, int64_t end) { f(begin, end, workspace(floats)); });
}

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_qkv, const std::optional<at::Tensor>& any_bias, int64_t heads) {
    const at::Tensor qkv = any_qkv.contiguous();
    const at::Tensor bias = any_bias.value_or(at::Tensor());
    const at::Tensor out = at::empty({qkv.size(0), qkv.size(1), qkv.size(2) / 3}, qkv.options());
    const at::Tensor lse = at::empty({qkv.size(0), heads, qkv.size(1)}, at::kFloat);
    const at::Tensor floats = as_floats(bias);
    kernels::AttentionArgs args = shape_of(qkv, heads);
    args.bias = floats_or_null(floats);
    args.out = out.mutable_data_ptr();
    args.lse = lse.mutable_data_ptr<float>();
    parallel_heads(qkv, args, false,
                   [&](int64_t begin, int64_t end, float* area) { kernels::active_fused_kernels().attention(args, begin, end, area); });
    context->save_for_backward({qkv, bias, lse});
    context->saved_data["heads"] = heads;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_create_graph("causal_attention");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& qkv = saved[0];
    const at::Tensor& bias = saved[1];
    const at::Tensor dout = grads[0].to(qkv.scalar_type()).contiguous();
    const at::Tensor dqkv = at::empty_like(qkv);
    const at::Tensor floats = as_floats(bias);
    const bool wants_bias = bias.defined() && context->needs_input_grad(1);
    const at::Tensor dbias = wants_bias ? at::zeros({qkv.size(0), qkv.size(2)}, at::kFloat) : at::Tensor();
    kernels::AttentionArgs args = shape_of(qkv, context->saved_data["heads"].toInt());
    args.bias = floats_or_null(floats);
    args.lse = const_cast<float*>(saved[2].const_data_ptr<float>());
    args.dout = dout.const_data_ptr();
    args.dqkv = dqkv.mutable_data_ptr();
    args.dbias = wants_bias ? dbias.mutable_data_ptr<float>() : nullptr;
    parallel_heads(qkv, args, true,
                   [&](int64_t begin, int64_t end, float* area) { kernels::active_fused_kernels().attention_backward(args, begin, end, area); });
    return {dqkv, wants_bias ? add_up(dbias).to(bias.scalar_type()) : at::Tensor(), {}};
  }
};

} // namespace

at::Tensor causal_attention(const at::Tensor& qkv, const at::Tensor& bias, int64_t heads, double dropout) {
  if (qkv.dim() != 3 || heads < 1 || qkv.size(2) % (3 * heads) != 0) {
    throw InputError("fused", concat("causal_attention: qkv must be [batch, length, 3 * heads * head_size], got ", qkv.sizes(), " and ", heads, " heads."));
  }
  check_parameter("causal_attention", "bias", bias, qkv.size(2));
  if (dropout == 0 && usable({qkv, bias})) {
    return CausalAttention::apply(qkv, if_defined(bias), heads);
  }
  const int64_t B = qkv.size(0);
  const int64_t T = qkv.size(1);
  const int64_t H = qkv.size(2) / 3;
  const auto parts = (bias.defined() ? qkv + bias : qkv).split(H, 2);
  const auto split_heads = [&](const at::Tensor& t) { return t.view({B, T, heads, H / heads}).transpose(1, 2); };
  const at::Tensor y = at::scaled_dot_product_attention(split_heads(parts[0]), split_heads(parts[1]), split_heads(parts[2]), {}, dropout, /*is_causal=*/true);
  return y.transpose(1, 2).reshape({B, T, H});
}

} // namespace trireme::fused
