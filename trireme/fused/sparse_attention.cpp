#include <trireme/fused/sparse_attention.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>
#include <trireme/fused/rows.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

#include <utility>

namespace trireme::fused {
namespace {

using attention::BlockLayout;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeldLayout final : torch::CustomClassHolder {
  explicit HeldLayout(std::shared_ptr<const BlockLayout> given) : layout(std::move(given)) {}
  std::shared_ptr<const BlockLayout> layout;
};

struct SparseAttention : torch::autograd::Function<SparseAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::shared_ptr<const BlockLayout>& layout) {
    const auto [out, lse] = attention_block({.q = q, .k = k, .v = v, .layout = layout.get()}, q.scalar_type());
    context->save_for_backward({q, k, v, out, lse});
    context->saved_data["layout"] = c10::IValue::make_capsule(c10::make_intrusive<HeldLayout>(layout));
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_create_graph("sparse_attention");
    const variable_list saved = context->get_saved_variables();
    const auto held = c10::static_intrusive_pointer_cast<HeldLayout>(context->saved_data["layout"].toCapsule());
    const at::Tensor delta = grads[0].to(at::kFloat).mul(saved[3]).sum(-1);
    auto found = attention_block_backward({.q = saved[0], .k = saved[1], .v = saved[2], .layout = held->layout.get()},
                                          grads[0], saved[4], delta, saved[0].scalar_type());
    return {std::move(found[0]), std::move(found[1]), std::move(found[2]), {}};
  }
};

} // namespace

at::Tensor mask_of(const BlockLayout& layout, int64_t tokens) {
  const int64_t blocks = layout.blocks(), padded = blocks * layout.block();
  at::Tensor mask = at::zeros({layout.patterns(), blocks, blocks}, at::kBool);
  auto cells = mask.accessor<bool, 3>();
  for (int64_t pattern = 0; pattern < layout.patterns(); ++pattern) {
    for (int64_t row = 0; row < blocks; ++row) {
      for (const int32_t key : layout.keys_of(pattern, row)) {
        cells[pattern][row][key] = true;
      }
    }
  }
  mask = mask.unsqueeze(2).unsqueeze(4).expand({-1, -1, layout.block(), -1, layout.block()});
  mask = mask.reshape({layout.patterns(), padded, padded}).narrow(1, 0, tokens).narrow(2, 0, tokens);
  return layout.causal() ? mask.tril() : mask.contiguous();
}

at::Tensor sparse_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            std::shared_ptr<const BlockLayout> layout) {
  const bool fits = q.dim() == 4 && k.sizes() == v.sizes() && k.dim() == 4 && k.size(0) == q.size(0) &&
                    k.size(2) == q.size(2) && k.size(3) == q.size(3) && k.size(1) > 0 && q.size(1) % k.size(1) == 0;
  if (!fits) {
    throw InputError("fused",
                     concat("sparse_attention: q must be [B, A, T, D], and k and v [B, K, T, D] where K divides A; "
                            "got ",
                            q.sizes(), ", ", k.sizes(), " and ", v.sizes()));
  }
  if (k.scalar_type() != q.scalar_type() || v.scalar_type() != q.scalar_type()) {
    throw InputError("fused",
                     concat("sparse_attention: q, k and v have the types ", q.scalar_type(), ", ", k.scalar_type(),
                            " and ", v.scalar_type()),
                     "Convert them to one.");
  }
  if (q.numel() == 0) {
    return q.clone();
  }
  const int64_t tokens = q.size(2), blocks = (tokens + layout->block() - 1) / layout->block();
  if (layout->blocks() != blocks || (layout->patterns() != 1 && layout->patterns() != q.size(1))) {
    throw InputError(
        "fused",
        concat("sparse_attention: the layout has ", layout->blocks(), " blocks and ", layout->patterns(),
               " patterns, but ", tokens, " tokens have ", blocks, " blocks, and there are ", q.size(1), " heads"),
        "Make the layout for these tokens and heads: attention::make_layout().");
  }
  for (int64_t row = 0; row < layout->patterns() * blocks; ++row) {
    if (layout->row_ends()[row] == layout->row_ends()[row + 1]) {
      throw InputError("fused", concat("sparse_attention: block ", row % blocks, " of the layout attends to nothing"),
                       "Give each block of queries a block of keys.");
    }
  }
  const auto rows = [](const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); };
  const AttentionBlock block = {.q = rows(q), .k = rows(k), .v = rows(v), .layout = layout.get()};
  if (usable(block)) {
    return SparseAttention::apply(block.q, block.k, block.v, layout);
  }
  return at::scaled_dot_product_attention(q, k, v, mask_of(*layout, tokens).to(q.device()), 0, false, std::nullopt,
                                          /*enable_gqa=*/k.size(1) != q.size(1));
}

} // namespace trireme::fused
