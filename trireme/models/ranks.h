#pragma once

#include <trireme/parallel/tensor/ranks.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::models {

/// The ranks among which a model's layers are split. By default none are.
struct ModelRanks {
  tensor::Ranks tensor = {};
};

/// This rank's share of `heads`. Errors: InputError of `model` when the tensor ranks do not divide them.
int64_t heads_of_rank(const char* model, int64_t heads, const ModelRanks& ranks);

/// x [B, T, H] plus the rows of `positions` [sequence_length, H] that belong to its tokens, which are all or this rank's part of the sequence.
/// Errors: InputError of `model` for a sequence that is longer than that.
at::Tensor add_positions(const char* model, const at::Tensor& x_BTH, const at::Tensor& positions, const ModelRanks& ranks);

} // namespace trireme::models
