#pragma once

#include <trireme/models/ranks.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

// Packed documents: windows [B, T] of tokens in which attention stays within each document. Their positions [B, T]
// (int64) count from 0 in each document; the first token of a row begins one too.
namespace trireme::models {

/// The lengths of the documents, row after row: they add up to B T. Cost: one read; on a GPU the host waits for it.
std::vector<int64_t> document_lengths(const at::Tensor& positions_BT);

/// Errors: InputError of `model` for positions that are not int64 [B, T] as `tokens_BT`, or if ranks split the tokens.
void check_documents(const char* model, const at::Tensor& tokens_BT, const at::Tensor& positions_BT,
                     const ModelRanks& ranks);

} // namespace trireme::models
