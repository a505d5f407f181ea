#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace trireme::models {

/// x / sqrt(mean(x^2) + eps) * weight over the last dim. Statistics are fp32; the quotient is rounded to the type of x
/// before the weight multiplies it, as in Hugging Face's transformers. Source: Zhang & Sennrich 2019, arXiv:1910.07467.
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(int64_t features, double eps);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight; ///< [features], initially 1
  double eps;
};
TORCH_MODULE(RmsNorm);

} // namespace trireme::models
