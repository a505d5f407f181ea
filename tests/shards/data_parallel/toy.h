#pragma once

#include <trireme/shards/data_parallel/data_parallel.h>

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace trireme::parallel {

/// So small that the toy has several buckets.
inline DataParallelOptions small_buckets() {
  DataParallelOptions options;
  options.bucket_bytes = 300;
  options.first_bucket_bytes = 64;
  return options;
}

/// A small network with a layer that only some batches use, a buffer, and a frozen parameter.
struct ToyImpl : torch::nn::Module {
  explicit ToyImpl(int64_t seed) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(6, 9));
    sometimes = register_module("sometimes", torch::nn::Linear(9, 9));
    never = register_module("never", torch::nn::Linear(9, 2));
    last = register_module("last", torch::nn::Linear(9, 1));
    frozen = register_parameter("frozen", torch::randn({9}), false);
    offset = register_buffer("offset", torch::randn({9}));
  }
  at::Tensor forward(const at::Tensor& x, bool use_sometimes) {
    at::Tensor h = torch::tanh(first->forward(x)) + offset + frozen;
    if (use_sometimes) {
      h = h + torch::tanh(sometimes->forward(h));
    }
    return last->forward(h).squeeze(1);
  }
  /// Mean squared error; the target is a fixed function of x.
  at::Tensor loss(const at::Tensor& x, bool use_sometimes = true) {
    return (forward(x, use_sometimes) - x.sum(1).sin()).pow(2).mean();
  }
  torch::nn::Linear first{nullptr}, sometimes{nullptr}, never{nullptr}, last{nullptr};
  at::Tensor frozen, offset;
};
TORCH_MODULE(Toy);

/// Batch `step` of a data set that every rank can compute: [rows, 6].
inline at::Tensor toy_batch(int64_t step, int64_t rows) {
  return torch::sin(torch::arange(rows * 6, torch::kFloat32).view({rows, 6}) * 0.37 + static_cast<double>(step));
}

/// Largest difference of any parameter, relative to its largest value.
inline double largest_difference(torch::nn::Module& a, torch::nn::Module& b) {
  double worst = 0;
  const auto others = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    const at::Tensor& other = others[item.key()];
    worst = std::max(worst, ((item.value() - other).abs().max() / other.abs().max().clamp_min(1e-12)).item<double>());
  }
  return worst;
}

} // namespace trireme::parallel
