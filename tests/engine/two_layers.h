#pragma once

#include "small_run.h"

#include <trireme/shards/zero/sharded.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme::engine {
namespace torch_programs {

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl(int64_t in, int64_t out, int64_t seed) {
    torch::manual_seed(static_cast<uint64_t>(seed));
    first = register_module("first", zero::Sharded<torch::nn::Linear>(in, 12));
    last = register_module("last", zero::Sharded<torch::nn::Linear>(12, out));
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(torch::tanh(first->forward(x))); }
  zero::Sharded<torch::nn::Linear> first{nullptr}, last{nullptr};
};
TORCH_MODULE(TwoLayers);

inline constexpr int kSteps = 6;
inline constexpr int kRows = 4; // of a rank

inline at::Tensor rows_of(int step, int rank, int64_t columns) {
  return torch::sin(torch::arange(kRows * columns).reshape({kRows, columns}) * (1.0 + step) + 10.0 * rank);
}

inline at::Tensor rows_of_all(int step, int ranks, int64_t columns) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(rows_of(step, rank, columns));
  }
  return torch::cat(all);
}

using Weights = std::map<std::string, at::Tensor>;

inline Weights weights_of(torch::nn::Module& model) {
  Weights found;
  for (const auto& item : model.named_parameters()) {
    found[item.key()] = item.value().detach().clone();
  }
  return found;
}

inline void expect_weights(const Weights& found, const Weights& expected, const std::string& where) {
  for (const auto& [name, tensor] : expected) {
    EXPECT_LE((found.at(name) - tensor).abs().max().item<double>(), 1e-6) << name << ", " << where;
  }
}

inline InitializeOptions options_for(TwoLayers model, int stage, int64_t accumulation = 1) {
  InitializeOptions options;
  options.config.batch.micro = kRows;
  options.config.batch.accumulation = accumulation;
  options.config.zero.stage = stage;
  options.config.zero.param_persistence_threshold = 10;
  options.config.data_parallel.bucket_bytes = 200;
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable { return model->forward(batch.input()).square().mean(); };
  return options;
}

inline data::Batch batch_of(const at::Tensor& x) {
  return {{x}, {x}, x.size(0)};
}

inline std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was refused";
}

inline Weights whole_weights(Engine& engine, TwoLayers& model) {
  const auto whole = engine.gather_parameters(model->parameters());
  return weights_of(*model);
}

} // namespace torch_programs
} // namespace trireme::engine
