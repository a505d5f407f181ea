#include <trireme/attention/block_layout.h>
#include <trireme/fused/floats.h>
#include <trireme/fused/fused.h>
#include <trireme/fused/rows.h>

#include <torch/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A scratch buffer per thread, kept between calls: new pages would cost up to a tenth of the attention.
float* workspace(int64_t floats) {
  struct Free {
    void operator()(void* p) const { std::free(p); }
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

/// Self-attention of a projection's result, [batch, length, 3 * heads * head_size].
kernels::AttentionArgs shape_of(const at::Tensor& qkv, int64_t heads) {
  kernels::AttentionArgs args;
  const int64_t hidden = qkv.size(2) / 3;
  const auto bytes = static_cast<const std::byte*>(qkv.const_data_ptr());
  const auto part = [&](int64_t which) { return bytes + which * hidden * static_cast<int64_t>(qkv.element_size()); };
  args.queries = args.keys = qkv.size(1);
  args.heads = heads;
  args.head_size = hidden / heads;
  args.q = part(0);
  args.k = part(1);
  args.v = part(2);
  args.q_at = args.k_at = args.v_at = args.dq_at = args.dk_at =
      args.dv_at = {qkv.size(1) * 3 * hidden, args.head_size, 3 * hidden};
  args.out_at = args.dout_at = {qkv.size(1) * hidden, args.head_size, hidden};
  args.scale = 1.0f / std::sqrt(static_cast<float>(args.head_size));
  args.element = args.result = element_of(qkv);
  return args;
}

template <class F>
void parallel_heads(int64_t batch, const kernels::AttentionArgs& args, bool backward, const F& f) {
  const int64_t floats = kernels::active_fused_kernels().attention_workspace(args, backward);
  const int64_t heads = backward && args.kv_heads > 0 ? args.kv_heads : args.heads;
  at::parallel_for(0, args.queries == 0 ? 0 : batch * heads, 1,
                   [&](int64_t begin, int64_t end) { f(begin, end, workspace(floats)); });
}
void run_forward(int64_t batch, const kernels::AttentionArgs& args) {
  parallel_heads(batch, args, false, [&](int64_t begin, int64_t end, float* area) {
    kernels::active_fused_kernels().attention(args, begin, end, area);
  });
}
void run_backward(int64_t batch, const kernels::AttentionArgs& args) {
  parallel_heads(batch, args, true, [&](int64_t begin, int64_t end, float* area) {
    kernels::active_fused_kernels().attention_backward(args, begin, end, area);
  });
}

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_qkv,
                            const std::optional<at::Tensor>& any_bias, int64_t heads) {
    const at::Tensor qkv = any_qkv.contiguous();
    const at::Tensor bias = any_bias.value_or(at::Tensor());
    const at::Tensor out = at::empty({qkv.size(0), qkv.size(1), qkv.size(2) / 3}, qkv.options());
    const at::Tensor lse = at::empty({qkv.size(0), heads, qkv.size(1)}, at::kFloat);
    const Floats floats(bias);
    kernels::AttentionArgs args = shape_of(qkv, heads);
    args.bias = floats.data();
    args.out = out.mutable_data_ptr();
    args.lse = lse.mutable_data_ptr<float>();
    run_forward(qkv.size(0), args);
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
    const Floats floats(bias);
    const bool wants_bias = bias.defined() && context->needs_input_grad(1);
    const at::Tensor dbias = wants_bias ? at::zeros({qkv.size(0), qkv.size(2)}, at::kFloat) : at::Tensor();
    kernels::AttentionArgs args = shape_of(qkv, context->saved_data["heads"].toInt());
    args.bias = floats.data();
    args.lse = const_cast<float*>(saved[2].const_data_ptr<float>());
    args.dout = dout.const_data_ptr();
    const auto bytes = static_cast<std::byte*>(dqkv.mutable_data_ptr());
    const int64_t part = qkv.size(2) / 3 * static_cast<int64_t>(qkv.element_size());
    args.dq = bytes;
    args.dk = bytes + part;
    args.dv = bytes + 2 * part;
    args.dbias = wants_bias ? dbias.mutable_data_ptr<float>() : nullptr;
    run_backward(qkv.size(0), args);
    if (!wants_bias) {
      return {dqkv, {}, {}};
    }
    const ParameterGradients total(dbias, kernels::Element::f32, {bias});
    auto* const sum = static_cast<float*>(total.data(0));
    std::fill_n(sum, dbias.size(1), 0.0f);
    add_rows(dbias.const_data_ptr<float>(), dbias.size(0), dbias.size(1), sum);
    return {dqkv, total.result(0), {}};
  }
};

kernels::AttentionArgs shape_of(const AttentionBlock& block) {
  kernels::AttentionArgs args;
  args.queries = block.q.size(2);
  args.keys = block.k.size(2);
  args.heads = block.q.size(1);
  args.kv_heads = block.k.size(1);
  args.head_size = block.q.size(3);
  args.q = block.q.const_data_ptr();
  args.k = block.k.const_data_ptr();
  args.v = block.v.const_data_ptr();
  args.q_at = strides_of(block.q);
  args.k_at = strides_of(block.k);
  args.v_at = strides_of(block.v);
  args.scale = 1.0f / std::sqrt(static_cast<float>(args.head_size));
  args.causal = block.causal;
  args.window = block.window;
  args.element = element_of(block.q);
  if (block.layout != nullptr) {
    const attention::BlockLayout& layout = *block.layout;
    args.causal = layout.causal();
    args.layout = {layout.block(), layout.patterns(), layout.all_keys().data(), layout.row_ends().data()};
  }
  return args;
}

/// [B, A, rows, D], in memory [B, rows, A, D].
at::Tensor rows_like(const at::Tensor& x, at::ScalarType type) {
  return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, type).transpose(1, 2);
}

} // namespace

bool usable(const AttentionBlock& block) {
  const auto rows = [](const at::Tensor& x) { return x.dim() == 4 && x.stride(3) == 1; };
  return usable({block.q, block.k, block.v}) && block.k.scalar_type() == block.q.scalar_type() &&
         block.v.scalar_type() == block.q.scalar_type() && rows(block.q) && rows(block.k) && rows(block.v) &&
         block.k.size(2) > 0 && block.k.size(1) > 0 && block.q.size(1) % block.k.size(1) == 0;
}

std::pair<at::Tensor, at::Tensor> attention_block(const AttentionBlock& block, at::ScalarType result) {
  kernels::AttentionArgs args = shape_of(block);
  const at::Tensor out = rows_like(block.q, result);
  args.result = element_of(out);
  const at::Tensor lse = at::empty({block.q.size(0), args.heads, args.queries}, at::kFloat);
  args.out = out.mutable_data_ptr();
  args.out_at = strides_of(out);
  args.lse = lse.mutable_data_ptr<float>();
  run_forward(block.q.size(0), args);
  return {out, lse};
}

std::array<at::Tensor, 3> attention_block_backward(const AttentionBlock& block, const at::Tensor& any_dout,
                                                   const at::Tensor& any_lse, const at::Tensor& any_delta,
                                                   at::ScalarType result) {
  kernels::AttentionArgs args = shape_of(block);
  const at::Tensor same = any_dout.to(block.q.scalar_type());
  const at::Tensor dout = same.stride(3) == 1 ? same : same.contiguous();
  const at::Tensor lse = any_lse.contiguous();
  const at::Tensor delta = any_delta.contiguous();
  const std::array<at::Tensor, 3> grads{rows_like(block.q, result), rows_like(block.k, result),
                                        rows_like(block.v, result)};
  args.result = element_of(grads[0]);
  args.dout = dout.const_data_ptr();
  args.dout_at = strides_of(dout);
  args.lse = const_cast<float*>(lse.const_data_ptr<float>());
  args.delta = delta.const_data_ptr<float>();
  args.dq = grads[0].mutable_data_ptr();
  args.dk = grads[1].mutable_data_ptr();
  args.dv = grads[2].mutable_data_ptr();
  args.dq_at = strides_of(grads[0]);
  args.dk_at = strides_of(grads[1]);
  args.dv_at = strides_of(grads[2]);
  run_backward(block.q.size(0), args);
  return grads;
}

at::Tensor causal_attention(const at::Tensor& qkv, const at::Tensor& bias, int64_t heads, double dropout) {
  if (qkv.dim() != 3 || heads < 1 || qkv.size(2) % (3 * heads) != 0) {
    throw InputError("fused", concat("causal_attention: qkv must be [batch, length, 3 * heads * head_size], got ",
                                     qkv.sizes(), " and ", heads, " heads."));
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
  const at::Tensor y = at::scaled_dot_product_attention(split_heads(parts[0]), split_heads(parts[1]),
                                                        split_heads(parts[2]), {}, dropout, /*is_causal=*/true);
  return y.transpose(1, 2).reshape({B, T, H});
}

} // namespace trireme::fused
