#pragma once

#include <ATen/ATen.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

/// Models as programs have them: nothing in them knows of ranks.
namespace trireme::test {

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t width, int64_t inner, bool bias = true)
      : fc1(torch::nn::LinearOptions(width, inner).bias(bias)), fc2(torch::nn::LinearOptions(inner, width).bias(bias)) {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  at::Tensor forward(const at::Tensor& x) { return fc2->forward(at::gelu(fc1->forward(x))); }
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Mlp);

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(int64_t width, int64_t head_width)
      : head_width(head_width), query(width, width), key(width, width), value(width, width), out(width, width) {
    register_module("query", query);
    register_module("key", key);
    register_module("value", value);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [&](const at::Tensor& y) {
      return y.view({y.size(0), y.size(1), -1, head_width}).transpose(1, 2);
    };
    const at::Tensor y = at::scaled_dot_product_attention(heads(query->forward(x)), heads(key->forward(x)),
                                                          heads(value->forward(x)), {}, 0.0, true);
    return out->forward(y.transpose(1, 2).flatten(2));
  }
  int64_t head_width;
  torch::nn::Linear query, key, value, out;
};
TORCH_MODULE(Attention);

struct FusedAttentionImpl : torch::nn::Module {
  FusedAttentionImpl(int64_t width, int64_t head_width)
      : head_width(head_width), qkv(width, 3 * width), out(width, width) {
    register_module("qkv", qkv);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [&](const at::Tensor& y) {
      return y.reshape({y.size(0), y.size(1), -1, head_width}).transpose(1, 2);
    };
    const std::vector<at::Tensor> parts = qkv->forward(x).chunk(3, -1);
    const at::Tensor y =
        at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0.0, true);
    return out->forward(y.transpose(1, 2).flatten(2));
  }
  int64_t head_width;
  torch::nn::Linear qkv, out;
};
TORCH_MODULE(FusedAttention);

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t head_width)
      : norm1(torch::nn::LayerNormOptions({width})),
        norm2(torch::nn::LayerNormOptions({width})),
        attention(width, head_width),
        mlp(width, 4 * width) {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("attention", attention);
    register_module("mlp", mlp);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + attention->forward(norm1->forward(x));
    return y + mlp->forward(norm2->forward(y));
  }
  torch::nn::LayerNorm norm1, norm2;
  Attention attention;
  Mlp mlp;
};
TORCH_MODULE(Block);

/// Ids to logits; the head is the embedding's weight.
struct TiedModelImpl : torch::nn::Module {
  TiedModelImpl(int64_t vocabulary, int64_t width, int64_t head_width, int64_t padding)
      : wte(torch::nn::EmbeddingOptions(vocabulary, width).padding_idx(padding)), block(width, head_width) {
    register_module("wte", wte);
    register_module("block", block);
  }
  at::Tensor forward(const at::Tensor& ids) { return at::linear(block->forward(wte->forward(ids)), wte->weight); }
  torch::nn::Embedding wte;
  Block block;
};
TORCH_MODULE(TiedModel);

} // namespace trireme::test
