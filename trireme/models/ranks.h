#pragma once

#include <trireme/parallel/context/options.h>
#include <trireme/parallel/tensor/ranks.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::models {

/// The ranks over which a model is split. Default: not split.
struct ModelRanks {
  /// Split the heads, MLPs and vocabulary of each layer.
  tensor::Ranks tensor = {};
  /// Split the tokens of each sample: every layer computes T/N tokens (context/sequence.h).
  comm::Group context = {};
  context::Kind context_kind = context::Kind::ring;

  bool shares_tokens() const { return context.size() > 1; }
};

/// This rank's tokens of x [B, T], which is the same on every rank.
at::Tensor own_tokens(const at::Tensor& x_BT, const ModelRanks& ranks);

/// This rank's share of `heads`. Errors: InputError of `model` when the tensor ranks do not divide them.
int64_t heads_of_rank(const char* model, int64_t heads, const ModelRanks& ranks);

/// x [B, T, H] plus the rows of `positions` [sequence_length, H] for its tokens (all, or this rank's): rows 0 to T - 1,
/// or those of packed documents (documents.h). Errors: InputError of `model` for a longer sequence.
at::Tensor add_positions(const char* model, const at::Tensor& x_BTH, const at::Tensor& positions,
                         const ModelRanks& ranks, const at::Tensor& documents_BT = {});

/// All logits [B, T, vocabulary], on every rank, from this rank's [B, its tokens, its part of the vocabulary].
at::Tensor join_logits(const at::Tensor& local, int64_t vocabulary, const ModelRanks& ranks);

/// The mean of losses over all counted tokens; this rank has `count` (0-dim) of them, with the sum `sum`. If
/// ranks split the tokens, returns this rank's addend times the number of ranks, because the engine averages over
/// them.
at::Tensor mean_over_tokens(const at::Tensor& sum, const at::Tensor& count, const ModelRanks& ranks);

/// Mean cross-entropy in nats of the logits x W^T against full targets [B, T]; ignores targets of -100. x [B, T, H]:
/// this rank's tokens; `weight`: its part of the vocabulary's rows. If ranks split the tokens: as mean_over_tokens().
/// Computed in chunks (tensor::linear_cross_entropy()), if takes_chunks().
bool takes_chunks(const at::Tensor& x_BTH, const at::Tensor& weight, const at::Tensor& targets_BT, int64_t vocabulary,
                  const ModelRanks& ranks);
at::Tensor head_loss(const at::Tensor& x_BTH, const at::Tensor& weight, const at::Tensor& targets_BT,
                     int64_t vocabulary, const ModelRanks& ranks);

/// The same of logits [B, T, V], this rank's tokens and part of the vocabulary. Backward overwrites the logits
/// (tensor::cross_entropy()).
at::Tensor split_token_loss(const at::Tensor& logits, const at::Tensor& targets_BT, int64_t vocabulary,
                            const ModelRanks& ranks);

} // namespace trireme::models
