#pragma once

#include <trireme/parallel/context/options.h>
#include <trireme/parallel/tensor/ranks.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::models {

/// The ranks among which a model is split. By default it is not.
struct ModelRanks {
  /// Share the heads, MLPs and vocabulary of each layer.
  tensor::Ranks tensor = {};
  /// Share the tokens of each sample: every layer computes with T/N tokens (context/sequence.h).
  comm::Group context = {};
  context::Kind context_kind = context::Kind::ring;

  bool shares_tokens() const {
    return context.size() > 1;
  }
};

/// This rank's tokens of x [B, T], which every rank has whole.
at::Tensor own_tokens(const at::Tensor& x_BT, const ModelRanks& ranks);

/// This rank's share of `heads`. Errors: InputError of `model` when the tensor ranks do not divide them.
int64_t heads_of_rank(const char* model, int64_t heads, const ModelRanks& ranks);

/// x [B, T, H] plus the rows of `positions` [sequence_length, H] that belong to its tokens, which are all or this
/// rank's. Errors: InputError of `model` for a sequence that is longer than that.
at::Tensor add_positions(const char* model, const at::Tensor& x_BTH, const at::Tensor& positions,
                         const ModelRanks& ranks);

/// The mean of losses over the tokens that count, of which this rank has `count` (0-dim) with the sum `sum`. Where
/// ranks share the tokens, it is this rank's summand times the number of ranks, since the engine takes the mean over
/// them.
at::Tensor mean_over_tokens(const at::Tensor& sum, const at::Tensor& count, const ModelRanks& ranks);

/// Mean cross-entropy in nats of logits [B, T, V], this rank's tokens and part of the vocabulary, against targets [B,
/// T], which every rank has whole; those of -100 do not count. Where ranks share the tokens: as mean_over_tokens(). The
/// logits are overwritten in backward (tensor::cross_entropy()).
at::Tensor split_token_loss(const at::Tensor& logits, const at::Tensor& targets_BT, int64_t vocabulary,
                            const ModelRanks& ranks);

} // namespace trireme::models
