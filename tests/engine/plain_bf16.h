#pragma once

#include "small_run.h"

#include <trireme/precision/cast.h>

#include <vector>

namespace trireme::engine {

/// Losses of training with nothing but libtorch: bf16 parameters, to which the model is cast, and fp32 masters that
/// torch's AdamW steps. `batch`: samples of a step.
inline std::vector<double> plain_bf16_losses(models::Gpt model, int steps, int64_t batch) {
  precision::cast_module(*model, precision::Type::bf16);
  std::vector<at::Tensor> masters;
  for (const at::Tensor& parameter : model->parameters()) {
    masters.push_back(parameter.detach().to(torch::kFloat32).requires_grad_());
  }
  torch::optim::AdamW optimizer(masters, torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(0.1));
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const data::Batch samples = test::batch_of_step(Counting(), step, batch);
    const at::Tensor loss = model->loss(samples.input(), samples.target());
    model->zero_grad();
    loss.backward();
    for (size_t i = 0; i < masters.size(); ++i) {
      masters[i].mutable_grad() = model->parameters()[i].grad().to(torch::kFloat32);
    }
    torch::nn::utils::clip_grad_norm_(masters, 1.0);
    optimizer.step();
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < masters.size(); ++i) {
      model->parameters()[i].copy_(masters[i]);
    }
    losses.push_back(loss.item<double>());
  }
  return losses;
}

} // namespace trireme::engine
