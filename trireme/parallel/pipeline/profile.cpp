#include <trireme/parallel/pipeline/profile.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/memory/recompute/state.h>
#include <trireme/parallel/pipeline/message.h>

#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

namespace trireme::pipeline {
namespace {

constexpr int kRepeats = 5;
constexpr double kEnoughSeconds = 0.2; // of one layer: no further repetitions after that

Tensors as_leaves(const Tensors& tensors) {
  Tensors leaves;
  for (const at::Tensor& tensor : tensors) {
    leaves.push_back(tensor.defined() ? tensor.detach() : tensor);
    if (tensor.defined() && tensor.is_floating_point()) {
      leaves.back().requires_grad_();
    }
  }
  return leaves;
}

// Copies with a graph behind them, so that a layer such as ReLU(inplace) modifies neither a leaf nor the inputs of the
// next repetition.
Tensors copies_of(const Tensors& leaves) {
  Tensors copies;
  for (const at::Tensor& leaf : leaves) {
    copies.push_back(leaf.defined() ? leaf.clone() : leaf);
  }
  return copies;
}

// Restores the gradients of a layer that the caller gave.
class GradientGuard {
 public:
  explicit GradientGuard(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) {
      before_.emplace_back(parameter, parameter.grad());
      parameter.mutable_grad().reset();
    }
  }
  ~GradientGuard() {
    for (const auto& [parameter, gradient] : before_) {
      parameter.mutable_grad() = gradient;
    }
  }
  GradientGuard(const GradientGuard&) = delete;
  GradientGuard& operator=(const GradientGuard&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
};

// The first repetition warms up caches and allocator.
double seconds_of(const BuiltLayer& layer, const Tensors& inputs, Tensors& outputs) {
  std::vector<double> seconds;
  double spent = 0;
  for (int i = 0; i < kRepeats && (i < 2 || spent < kEnoughSeconds); ++i) {
    const Tensors arrived = copies_of(as_leaves(inputs));
    const auto begin = std::chrono::steady_clock::now();
    outputs = layer.forward(arrived);
    Tensors roots;
    Tensors grads;
    for (const at::Tensor& output : outputs) {
      if (output.defined() && output.requires_grad()) {
        roots.push_back(output);
        grads.push_back(torch::ones_like(output));
      }
    }
    if (!roots.empty()) {
      torch::autograd::backward(roots, grads);
    }
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    spent += seconds.back();
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[(seconds.size() - 1) / 2];
}

} // namespace

std::vector<double> LayerProfile::bytes(int64_t in_flight) const {
  std::vector<double> sum;
  for (size_t i = 0; i < parameter_bytes.size(); ++i) {
    sum.push_back(4 * parameter_bytes[i] + static_cast<double>(in_flight) * activation_bytes[i]);
  }
  return sum;
}

LayerProfile profile_layers(const LayerList& layers, const Tensors& sample_inputs) {
  if (sample_inputs.empty()) {
    throw InputError("pipeline", "partition \"profile\" and \"memory\" need a micro-batch to measure with",
                     "Call PipelineModule::set_sample_inputs, or choose partition \"parameters\".");
  }
  const recompute::RandomGuard random(recompute::RandomState::of(sample_inputs));
  LayerProfile profile;
  Tensors tensors = sample_inputs;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> shared;
  struct Known {
    size_t layer;
    Tensors outputs;
  };
  std::map<std::string, Known> known;
  for (const Layer& layer : layers) {
    // Measures one of several blocks of the same class, size and input: they cost the same.
    const std::string kind = concat(layer.type(), ' ', layer.trainable_parameters(), ' ', describe(tensors), ' ',
                                    join(layer.frozen_parameters(), " "));
    if (const auto same = known.find(kind); layer.is_lazy() && !layer.tie() && same != known.end()) {
      profile.seconds.push_back(profile.seconds[same->second.layer]);
      profile.parameter_bytes.push_back(profile.parameter_bytes[same->second.layer]);
      profile.activation_bytes.push_back(profile.activation_bytes[same->second.layer]);
      tensors = same->second.outputs;
      continue;
    }
    const auto found = layer.tie() ? shared.find(layer.tie()->key) : shared.end();
    const bool again = found != shared.end();
    const BuiltLayer built = again ? layer.share(found->second) : layer.build();
    if (layer.tie()) {
      shared[layer.tie()->key] = built.module;
    }
    Tensors outputs;
    const recompute::BufferGuard buffers(built.module ? built.module->buffers() : Tensors());
    const GradientGuard gradients(built.module ? built.module->parameters() : Tensors());
    profile.seconds.push_back(seconds_of(built, tensors, outputs));
    double parameters = 0;
    if (built.module && !again) {
      for (const at::Tensor& parameter : built.module->parameters()) {
        parameters += parameter.requires_grad() ? static_cast<double>(parameter.nbytes()) : 0;
      }
    }
    profile.parameter_bytes.push_back(parameters);
    double activations = 0;
    for (const at::Tensor& output : outputs) {
      activations += output.defined() ? static_cast<double>(output.nbytes()) : 0;
    }
    profile.activation_bytes.push_back(activations);
    tensors = as_leaves(outputs);
    known.emplace(kind, Known{profile.seconds.size() - 1, tensors});
  }
  return profile;
}

} // namespace trireme::pipeline
