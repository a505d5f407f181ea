#include <trireme/models/cnn.h>

#include <trireme/base/error.h>
#include <trireme/models/initialize.h>

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

namespace trireme::models {

namespace nn = torch::nn;

CnnImpl::CnnImpl(const CnnOptions& options) : dropout_(options.dropout) {
  if (options.side < 4 || options.side % 4 != 0) {
    throw InputError("cnn", concat("side must be a multiple of 4 because it is halved twice, got ", options.side));
  }
  const int64_t w = options.width;
  const int64_t flat = 2 * w * (options.side / 4) * (options.side / 4);
  conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(options.channels, w, 3).padding(1)));
  conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(w, 2 * w, 3).padding(1)));
  fc1 = register_module("fc1", nn::Linear(flat, 4 * w));
  fc2 = register_module("fc2", nn::Linear(4 * w, options.classes));
  for (const auto& item : named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (parameter.dim() == 1) {
      fill(parameter, 0);
    } else { // He et al. 2015, arXiv:1502.01852: keeps the variance through ReLU
      const auto fan_in = static_cast<double>(parameter.numel() / parameter.size(0));
      fill_normal(parameter, std::sqrt(2.0 / fan_in), options.seed, item.key());
    }
  }
}

at::Tensor CnnImpl::forward(const at::Tensor& images) {
  at::Tensor x = at::max_pool2d(at::relu(conv1->forward(images.to(conv1->weight.scalar_type()))), 2);
  x = at::max_pool2d(at::relu(conv2->forward(x)), 2);
  x = at::relu(fc1->forward(x.flatten(1)));
  if (dropout_ > 0 && is_training()) {
    x = at::dropout(x, dropout_, true);
  }
  return fc2->forward(x);
}

at::Tensor CnnImpl::loss(const at::Tensor& images, const at::Tensor& labels) {
  return at::cross_entropy_loss(forward(images).to(at::kFloat), labels);
}

} // namespace trireme::models
