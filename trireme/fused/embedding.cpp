#include <trireme/fused/gradient_home.h>
#include <trireme/fused/int8.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// at::embedding() whose backward adds only the rows of the batch's tokens to the weight's gradient, where that has
// memory of its own: a tied one has the gradient of the logits already. The rows of one token are summed before they
// are added, so the result is that of a dense gradient, to the bit.
struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& ids) {
    context->save_for_backward({ids});
    context->saved_data["weight"] = weight; // not its values: only its gradient's memory is asked for
    return at::embedding(weight, ids);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor ids = context->get_saved_variables()[0];
    const at::Tensor weight = context->saved_data["weight"].toTensor();
    const int64_t rows = weight.size(0);
    const GradientMemory home = ids.numel() > 0 ? gradient_memory(weight) : GradientMemory();
    if (!home) {
      return {at::embedding_backward(grads[0], ids, rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false,
                                     /*sparse=*/false),
              {}};
    }
    const auto [tokens, places] = at::_unique(ids.flatten(), /*sorted=*/true, /*return_inverse=*/true);
    const at::Tensor sums = at::embedding_dense_backward(grads[0].reshape({-1, weight.size(1)}), places, tokens.numel(),
                                                         /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
    if (home.is_first) {
      home.memory.zero_();
    }
    home.memory.index_add_(0, tokens, sums);
    return {at::Tensor(), {}};
  }
};

// On other devices the number of different tokens would have to reach the host, and atomic additions have no order.
bool adds_rows(const at::Tensor& weight, const at::Tensor& ids) {
  return weight.is_cpu() && ids.is_cpu() && at::GradMode::is_enabled() && has_gradient_home(weight);
}

} // namespace

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) {
  if (is_int8(weight)) {
    return unpack_int8(at::embedding(weight, ids).flatten(0, -2), at::kFloat).unflatten(0, ids.sizes());
  }
  return adds_rows(weight, ids) ? Embedding::apply(weight, ids) : at::embedding(weight, ids);
}

} // namespace trireme::fused
