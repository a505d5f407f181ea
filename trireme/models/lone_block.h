#pragma once

#include <trireme/models/options.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace trireme::models {

/// One block of a language model with the parameters that one of several tensor ranks has, without the others: their
/// sums are missing, so results mean nothing. It takes the time of such a rank without its collectives.
struct LoneBlock {
  std::shared_ptr<torch::nn::Module> module;
  /// [B, T, H] -> [B, T, H].
  std::function<at::Tensor(const at::Tensor& x_BTH)> forward;
};

/// `tensor`: ranks that share the block; divides heads, heads of keys, and the MLP's width. A Llama attends to all
/// tokens, and its positions are not scaled.
LoneBlock lone_block(const TransformerShape& shape, int64_t tensor = 1);

} // namespace trireme::models
