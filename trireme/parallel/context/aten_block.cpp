#include <trireme/parallel/context/aten_block.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>
#include <optional>
#include <tuple>

namespace trireme::context {
namespace {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();

std::optional<at::Tensor> added_mask(const Block& block) {
  if (!block.key_padding.defined()) {
    return std::nullopt;
  }
  return at::zeros(block.key_padding.sizes(), block.q.options())
      .masked_fill_(block.key_padding.logical_not(), kUnseen)
      .view({block.k.size(0), 1, 1, block.k.size(2)});
}

BlockResult flash_cpu_forward(const Block& block) {
  auto [out, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(block.q, block.k, block.v, 0.0, block.causal, added_mask(block));
  if (block.key_padding.defined()) { // the kernel returns 0 for queries without a key
    lse.masked_fill_(block.key_padding.any(-1).logical_not().view({-1, 1, 1}), kUnseen);
  }
  return {out, lse};
}

BlockGradients flash_cpu_backward(const Block& block, const at::Tensor& dout, const at::Tensor& out,
                                  const at::Tensor& lse) {
  // exp(-inf - 0) is a weight of 0; exp(-inf + inf) is NaN.
  const at::Tensor finite = block.key_padding.defined() ? lse.masked_fill(lse == kUnseen, 0) : lse;
  auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      dout, block.q, block.k, block.v, out, finite, 0.0, block.causal, added_mask(block));
  return {q, k, v};
}

/// Seed and offset of a dropout of 0.
at::Tensor no_random() {
  return at::empty({}, at::TensorOptions(at::kLong));
}

BlockResult flash_forward(const Block& block) {
  auto result = at::_scaled_dot_product_flash_attention(block.q, block.k, block.v, 0.0, block.causal);
  return {std::get<0>(result), std::get<1>(result)};
}

BlockGradients flash_backward(const Block& block, const at::Tensor& dout, const at::Tensor& out,
                              const at::Tensor& lse) {
  auto [q, k, v] = at::_scaled_dot_product_flash_attention_backward(
      dout, block.q, block.k, block.v, out, lse.contiguous(), {}, {}, block.q.size(2), block.k.size(2), 0.0,
      block.causal, no_random(), no_random());
  return {q, k, v};
}

BlockResult cudnn_forward(const Block& block) {
  auto result = at::_scaled_dot_product_cudnn_attention(block.q, block.k, block.v, std::nullopt,
                                                        /*compute_log_sumexp=*/true, 0.0, block.causal);
  return {std::get<0>(result), std::get<1>(result).reshape({block.q.size(0), block.q.size(1), block.q.size(2)})};
}

/// `x` with the strides that the kernel's own result has. ATen keeps cuDNN's graphs by the strides of q, k and v alone,
/// so the others must follow from these.
at::Tensor with_strides_of(const at::Tensor& x, const at::Tensor& q) {
  const at::Tensor same = at::empty_like(q);
  return x.strides() == same.strides() ? x : same.copy_(x);
}

BlockGradients cudnn_backward(const Block& block, const at::Tensor& dout, const at::Tensor& out,
                              const at::Tensor& lse) {
  auto [q, k, v] = at::_scaled_dot_product_cudnn_attention_backward(
      with_strides_of(dout, block.q), block.q, block.k, block.v, with_strides_of(out, block.q), lse.contiguous(),
      no_random(), no_random(), {}, {}, {}, block.q.size(2), block.k.size(2), 0.0, block.causal);
  return {q, k, v};
}

} // namespace

BlockResult aten_forward(BlockForm form, const Block& block) {
  switch (form) {
    case BlockForm::cudnn:
      return cudnn_forward(block);
    case BlockForm::flash:
      return flash_forward(block);
    default:
      return flash_cpu_forward(block);
  }
}

BlockGradients aten_backward(BlockForm form, const Block& block, const at::Tensor& dout, const at::Tensor& out,
                             const at::Tensor& lse) {
  const at::Tensor same_type = out.to(block.q.scalar_type());
  switch (form) {
    case BlockForm::cudnn:
      return cudnn_backward(block, dout, same_type, lse);
    case BlockForm::flash:
      return flash_backward(block, dout, same_type, lse);
    default:
      return flash_cpu_backward(block, dout, same_type, lse);
  }
}

at::SDPBackend aten_choice(const Block& block) {
  at::Tensor q = block.q.detach();
  const at::AutoGradMode as_in_training(true); // some kernels have no backward for some sizes of heads
  if (!q.is_inference()) {
    q.requires_grad_();
  }
  return static_cast<at::SDPBackend>(at::_fused_sdp_choice(q, block.k, block.v, {}, 0.0, block.causal, std::nullopt,
                                                           /*enable_gqa=*/block.q.size(1) != block.k.size(1)));
}

} // namespace trireme::context
