#include <trireme/models/alexnet_layers.h>

#include <trireme/base/error.h>
#include <trireme/models/checkpoint_weights.h>
#include <trireme/models/initialize.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <array>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

namespace trireme::models {
namespace {

namespace nn = torch::nn;
using pipeline::Layer;
using pipeline::LayerSpec;

constexpr int64_t kPooledSide = 6;

nn::Conv2dOptions convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  return nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding);
}

Layer pool() {
  return LayerSpec<nn::MaxPool2d>(nn::MaxPool2dOptions(3).stride(2));
}

std::vector<Layer> features(int64_t channels) {
  const LayerSpec<nn::ReLU> relu;
  return {LayerSpec<nn::Conv2d>(convolution(channels, 64, 11, 4, 2)),
          relu,
          pool(),
          LayerSpec<nn::Conv2d>(convolution(64, 192, 5, 1, 2)),
          relu,
          pool(),
          LayerSpec<nn::Conv2d>(convolution(192, 384, 3, 1, 1)),
          relu,
          LayerSpec<nn::Conv2d>(convolution(384, 256, 3, 1, 1)),
          relu,
          LayerSpec<nn::Conv2d>(convolution(256, 256, 3, 1, 1)),
          relu,
          pool()};
}

std::vector<Layer> classifier(const AlexNetOptions& options) {
  const LayerSpec<nn::ReLU> relu;
  const LayerSpec<nn::Dropout> dropout{options.dropout};
  return {dropout,
          LayerSpec<nn::Linear>(256 * kPooledSide * kPooledSide, options.hidden),
          relu,
          dropout,
          LayerSpec<nn::Linear>(options.hidden, options.hidden),
          relu,
          LayerSpec<nn::Linear>(options.hidden, options.classes)};
}

void fill_at_random(const at::Tensor& parameter, int64_t seed, const std::string& name) {
  if (parameter.dim() == 1) {
    fill(parameter, 0);
  } else { // He et al. 2015, arXiv:1502.01852: keeps the variance through ReLU
    const auto fan_in = static_cast<double>(parameter.numel() / parameter.size(0));
    fill_normal(parameter, std::sqrt(2.0 / fan_in), seed, name);
  }
}

FillParameter initial_values(const AlexNetOptions& options) {
  if (options.init_from.empty()) {
    return [seed = options.seed](const std::string& name, const at::Tensor& parameter) {
      fill_at_random(parameter, seed, name);
    };
  }
  std::set<std::string> names;
  for (const char* layer : {"features.0", "features.3", "features.6", "features.8", "features.10", "classifier.1",
                            "classifier.4", "classifier.6"}) {
    names.insert(concat(layer, ".weight"));
    names.insert(concat(layer, ".bias"));
  }
  return values_in(options.init_from, std::move(names));
}

} // namespace

pipeline::LayerList alexnet_layers(const AlexNetOptions& options) {
  if (options.resize != 0 && options.resize < AlexNetOptions::kSmallestSide) {
    throw InputError("alexnet",
                     concat("images must be enlarged to at least ", AlexNetOptions::kSmallestSide,
                            " pixels, got resize ", options.resize),
                     "Use 64 for speed, 224 (the network's original size), or 0 for images that are large enough.");
  }
  std::vector<Layer> layers;
  const FillParameter values = initial_values(options);
  const auto add = [&](const std::string& part, const std::vector<Layer>& of_part) {
    for (size_t i = 0; i < of_part.size(); ++i) {
      Layer layer = of_part[i];
      const std::string prefix = concat(part, '.', i);
      layer.name(prefix);
      layer.initialise([prefix, values](nn::Module& module) {
        for (const auto& item : module.named_parameters()) {
          values(concat(prefix, '.', item.key()), item.value());
        }
      });
      layers.push_back(std::move(layer));
    }
  };
  if (options.resize > 0) {
    layers.push_back([side = options.resize](at::Tensor x_BCHW) {
      return at::upsample_bilinear2d(x_BCHW, std::array<int64_t, 2>{side, side}, /*align_corners=*/false);
    });
  }
  add("features", features(options.channels));
  layers.push_back(LayerSpec<nn::AdaptiveAvgPool2d>(nn::AdaptiveAvgPool2dOptions({kPooledSide, kPooledSide})));
  layers.push_back([](at::Tensor x_BCHW) { return x_BCHW.flatten(1); });
  add("classifier", classifier(options));
  return pipeline::LayerList(std::move(layers));
}

at::Tensor count_right_labels(const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
  return outputs.at(0).argmax(1).eq(targets.at(0).reshape({-1})).sum();
}

at::Tensor label_loss(const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
  const at::Tensor& logits = outputs.at(0);
  return at::cross_entropy_loss(logits.to(at::promote_types(logits.scalar_type(), at::kFloat)), targets.at(0));
}

} // namespace trireme::models
