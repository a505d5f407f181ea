#include <trireme/models/ranks.h>

#include <trireme/base/error.h>
#include <trireme/parallel/context/sequence.h>
#include <trireme/parallel/tensor/cross_entropy.h>

#include <ATen/ATen.h>

namespace trireme::models {

at::Tensor own_tokens(const at::Tensor& x_BT, const ModelRanks& ranks) {
  return ranks.shares_tokens() ? context::take_tokens(x_BT, ranks.context, ranks.context_kind, 1) : x_BT;
}

int64_t heads_of_rank(const char* model, int64_t heads, const ModelRanks& ranks) {
  if (heads % ranks.tensor.group.size() != 0) {
    throw InputError(
        model, concat("the ", ranks.tensor.group.size(), " tensor-parallel ranks must divide the ", heads, " heads"),
        "Choose parallel.tensor so that it divides model.heads.");
  }
  return heads / ranks.tensor.group.size();
}

at::Tensor add_positions(const char* model, const at::Tensor& x_BTH, const at::Tensor& positions,
                         const ModelRanks& ranks, const at::Tensor& documents_BT) {
  const int64_t tokens = x_BTH.size(1);
  const int64_t parts = ranks.tensor.splits_sequence() ? ranks.tensor.group.size() : 1;
  const int64_t length = tokens * parts * ranks.context.size();
  if (length > positions.size(0)) {
    throw InputError(
        model, concat("a sequence of ", length, " tokens exceeds the model's sequence_length ", positions.size(0)));
  }
  const int64_t begin = parts > 1 ? ranks.tensor.group.rank() * tokens : 0;
  if (documents_BT.defined()) {
    return x_BTH + at::embedding(positions, documents_BT.slice(1, begin, begin + tokens));
  }
  if (!ranks.shares_tokens()) {
    return x_BTH + positions.slice(0, begin, begin + tokens);
  }
  const at::Tensor places = context::positions(length, ranks.context, ranks.context_kind, x_BTH.device());
  return x_BTH + positions.index_select(0, places.slice(0, begin, begin + tokens));
}

at::Tensor join_logits(const at::Tensor& local, int64_t vocabulary, const ModelRanks& ranks) {
  const at::Tensor logits = tensor::join_last_dim(local, vocabulary, ranks.tensor);
  if (!ranks.shares_tokens()) {
    return logits;
  }
  const at::Tensor whole = context::join_tokens(logits, ranks.context, ranks.context_kind, 1);
  if (whole.requires_grad()) { // the engine averages over the context ranks, each with its tokens' gradient
    whole.register_hook([ranks = ranks.context.size()](const at::Tensor& grad) { return grad * ranks; });
  }
  return whole;
}

at::Tensor mean_over_tokens(const at::Tensor& sum, const at::Tensor& count, const ModelRanks& ranks) {
  if (!ranks.shares_tokens()) {
    return sum / count.clamp_min(1);
  }
  const at::Tensor all = count.to(at::kDouble).reshape({1}).clone();
  ranks.context.all_reduce(all, comm::ReduceOp::sum, "tokens that count").wait();
  return sum * (static_cast<double>(ranks.context.size()) / all.squeeze(0).clamp_min(1)).to(sum.scalar_type());
}

namespace {

/// `loss_of(target, reduction)`: of these targets [B T], by tensor::cross_entropy().
template <class F>
at::Tensor token_loss_of(const at::Tensor& targets_BT, const ModelRanks& ranks, const F& loss_of) {
  constexpr int64_t kIgnored = -100;
  const at::Tensor target = own_tokens(targets_BT, ranks).reshape({-1});
  return ranks.shares_tokens() ? mean_over_tokens(loss_of(target, at::Reduction::Sum), target.ne(kIgnored).sum(), ranks)
                               : loss_of(target, at::Reduction::Mean);
}

} // namespace

bool takes_chunks(const at::Tensor& x_BTH, const at::Tensor& weight, const at::Tensor& targets_BT, int64_t vocabulary,
                  const ModelRanks& ranks) {
  return tensor::takes_chunks(x_BTH, weight, targets_BT.numel() / ranks.context.size(), vocabulary, ranks.tensor);
}

at::Tensor head_loss(const at::Tensor& x_BTH, const at::Tensor& weight, const at::Tensor& targets_BT,
                     int64_t vocabulary, const ModelRanks& ranks) {
  return token_loss_of(targets_BT, ranks, [&](const at::Tensor& target, int64_t reduction) {
    return tensor::linear_cross_entropy(x_BTH, weight, target, vocabulary, ranks.tensor, reduction);
  });
}

at::Tensor split_token_loss(const at::Tensor& logits, const at::Tensor& targets_BT, int64_t vocabulary,
                            const ModelRanks& ranks) {
  return token_loss_of(targets_BT, ranks, [&](const at::Tensor& target, int64_t reduction) {
    return tensor::cross_entropy(logits.reshape({-1, logits.size(-1)}), target, vocabulary, ranks.tensor, reduction);
  });
}

} // namespace trireme::models
