#include <trireme/parallel/context/ulysses.h>

#include <trireme/base/error.h>
#include <trireme/comm/held_group.h>
#include <trireme/fused/fused.h>
#include <trireme/parallel/context/block_form.h>
#include <trireme/parallel/context/closed_forms.h>
#include <trireme/parallel/context/ring.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

#include <optional>
#include <vector>

namespace trireme::context {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Number of heads of all tensors.
int64_t heads_of(const variable_list& tensors) {
  int64_t heads = 0;
  for (const at::Tensor& x : tensors) {
    heads += x.size(1);
  }
  return heads;
}

at::Tensor exchange(const comm::Group& ranks, const at::Tensor& in, const char* what) {
  at::Tensor out = ranks.allocate(in.numel(), in.scalar_type(), in.device());
  ranks.all_to_all(out, in.view(-1), what).wait();
  return out;
}

/// [B, H_i, t, D] each -> [B, H_i/N, T, D]: this rank's heads of all tokens, as views of one buffer [T, B, sum of
/// H_i/N, D].
variable_list heads_from_tokens(const comm::Group& ranks, const variable_list& tensors) {
  const int64_t N = ranks.size(), B = tensors[0].size(0), t = tensors[0].size(2), D = tensors[0].size(3),
                H = heads_of(tensors) / N;
  const at::Tensor in =
      ranks.allocate(N * t * B * H * D, tensors[0].scalar_type(), tensors[0].device()).view({N, t, B, H, D});
  int64_t begin = 0;
  for (const at::Tensor& x : tensors) {
    const int64_t h = x.size(1) / N;
    in.narrow(3, begin, h).copy_(x.unflatten(1, {N, h}).permute({1, 3, 0, 2, 4}));
    begin += h;
  }
  const at::Tensor out = exchange(ranks, in, "tokens of heads").view({N * t, B, H, D});
  variable_list parts;
  begin = 0;
  for (const at::Tensor& x : tensors) {
    const int64_t h = x.size(1) / N;
    parts.push_back(out.narrow(2, begin, h).permute({1, 2, 0, 3}));
    begin += h;
  }
  return parts;
}

/// The inverse: [B, H_i/N, T, D] each -> [B, H_i, t, D], in memory [B, t, H_i, D].
variable_list tokens_from_heads(const comm::Group& ranks, const variable_list& tensors) {
  const int64_t N = ranks.size(), B = tensors[0].size(0), T = tensors[0].size(2), D = tensors[0].size(3),
                H = heads_of(tensors);
  const at::Tensor in = ranks.allocate(T * B * H * D, tensors[0].scalar_type(), tensors[0].device()).view({T, B, H, D});
  int64_t begin = 0;
  for (const at::Tensor& x : tensors) {
    in.narrow(2, begin, x.size(1)).copy_(x.permute({2, 0, 1, 3}));
    begin += x.size(1);
  }
  const at::Tensor out = exchange(ranks, in, "heads of tokens").view({N, T / N, B, H, D});
  variable_list wholes;
  begin = 0;
  for (const at::Tensor& x : tensors) {
    const int64_t h = x.size(1);
    const at::Tensor whole = at::empty({B, T / N, N * h, D}, x.options());
    whole.unflatten(2, {N, h}).copy_(out.narrow(3, begin, h).permute({2, 1, 0, 3, 4}));
    wholes.push_back(whole.transpose(1, 2));
    begin += h;
  }
  return wholes;
}

void keep(AutogradContext* context, const comm::Group& ranks) {
  context->saved_data["ranks"] = comm::HeldGroup::hold(ranks);
}
comm::Group kept(AutogradContext* context) {
  if (at::GradMode::is_enabled()) {
    throw Error("context", "attention over several ranks has no double backward (create_graph).",
                "Remove create_graph.");
  }
  return comm::HeldGroup::of(context->saved_data["ranks"]);
}

struct HeadsFromTokens : torch::autograd::Function<HeadsFromTokens> {
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const comm::Group& ranks) {
    keep(context, ranks);
    return heads_from_tokens(ranks, {q, k, v});
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    variable_list back = tokens_from_heads(kept(context), grads);
    back.emplace_back();
    return back;
  }
};

struct TokensFromHeads : torch::autograd::Function<TokensFromHeads> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const comm::Group& ranks) {
    keep(context, ranks);
    return tokens_from_heads(ranks, {x})[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {heads_from_tokens(kept(context), grads)[0], {}};
  }
};

at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  if (heads == x.size(1)) {
    return x;
  }
  const int64_t times = heads / x.size(1);
  return x.unsqueeze(2).expand({-1, -1, times, -1, -1}).flatten(1, 2);
}

} // namespace

at::Tensor local_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionOptions& options, const at::Tensor& key_padding) {
  BlockTraits traits{.device = q.device().type(),
                     .type = q.scalar_type(),
                     .head_size = q.size(3),
                     .groups = q.size(1) / k.size(1),
                     .key_padding = key_padding.defined(),
                     .window = options.window > 0,
                     .dropout = options.dropout > 0,
                     .ours = fused::usable(fused::AttentionBlock{q, k, v, options.causal, options.window})};
  const bool grouped = traits.groups > 1;
  const std::optional<at::Tensor> mask =
      key_padding.defined() ? std::optional(key_padding.view({k.size(0), 1, 1, k.size(2)})) : std::nullopt;
  if (q.is_cuda() || (q.is_cpu() && !grouped)) {
    traits.choice =
        static_cast<at::SDPBackend>(at::_fused_sdp_choice(q, k, v, mask, 0.0, options.causal, std::nullopt, grouped));
  }
  if (attends_by_aten(traits)) {
    return at::scaled_dot_product_attention(q, k, v, mask, 0.0, options.causal, std::nullopt, grouped);
  }
  return ring_attention(q, k, v, comm::Group(), options, key_padding);
}

at::Tensor ulysses_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const comm::Group& ranks,
                             const AttentionOptions& options, const at::Tensor& key_padding) {
  const int N = ranks.size();
  if (q.size(1) % N != 0) {
    throw InputError("context", concat("Ulysses cannot split ", q.size(1), " heads equally among ", N, " ranks."),
                     "Choose a number of context ranks that divides the heads, or ring attention.");
  }
  const int64_t kv_heads = exchanged_kv_heads(q.size(1), k.size(1), N);
  const variable_list here = HeadsFromTokens::apply(q, repeat_heads(k, kv_heads), repeat_heads(v, kv_heads), ranks);
  at::Tensor padding;
  if (key_padding.defined()) {
    const at::Tensor mine = key_padding.contiguous().view(at::kByte);
    const at::Tensor all =
        ranks.allocate(N * mine.numel(), at::kByte, mine.device()).view({N, mine.size(0), mine.size(1)});
    ranks.all_gather(all, mine, "key padding").wait();
    padding = all.transpose(0, 1).flatten(1, 2).to(at::kBool);
  }
  return TokensFromHeads::apply(local_attention(here[0], here[1], here[2], options, padding), ranks);
}

} // namespace trireme::context
