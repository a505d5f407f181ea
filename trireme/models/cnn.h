#pragma once

#include <trireme/models/options.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace trireme::models {

/// A small image classifier: [B, channels, side, side] float -> [B, classes] logits.
/// Two 3x3 convolutions with ReLU and 2x2 maximum each, then two linear layers.
class CnnImpl : public torch::nn::Module {
 public:
  /// Errors: InputError when side is not a multiple of 4.
  explicit CnnImpl(const CnnOptions& options);
  at::Tensor forward(const at::Tensor& images);
  /// Mean cross-entropy in nats against class numbers [B].
  at::Tensor loss(const at::Tensor& images, const at::Tensor& labels);

  torch::nn::Conv2d conv1{nullptr};
  torch::nn::Conv2d conv2{nullptr};
  torch::nn::Linear fc1{nullptr};
  torch::nn::Linear fc2{nullptr};

 private:
  double dropout_;
};
TORCH_MODULE(Cnn);

} // namespace trireme::models
