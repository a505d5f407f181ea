#include <trireme/parallel/pipeline/profile.h>

#include <trireme/base/error.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <map>

namespace trireme::pipeline {
namespace {

constexpr int kRepeats = 5;

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

// The first time warms up caches and allocator.
double seconds_of(const BuiltLayer& layer, const Tensors& inputs, Tensors& outputs) {
  std::vector<double> seconds;
  for (int i = 0; i < kRepeats; ++i) {
    const Tensors leaves = as_leaves(inputs);
    const auto begin = std::chrono::steady_clock::now();
    outputs = layer.forward(leaves);
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
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRepeats / 2, seconds.end());
  return seconds[kRepeats / 2];
}

} // namespace

std::vector<double> LayerProfile::bytes(int stages) const {
  std::vector<double> sum;
  for (size_t i = 0; i < seconds.size(); ++i) {
    sum.push_back(4 * parameter_bytes[i] + stages * activation_bytes[i]);
  }
  return sum;
}

LayerProfile profile_layers(const LayerList& layers, const Tensors& sample_inputs) {
  if (sample_inputs.empty()) {
    throw InputError("pipeline", "partition \"profile\" and \"memory\" need a micro-batch to measure with",
                     "Call PipelineModule::set_sample_inputs, or choose partition \"parameters\".");
  }
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor random_state = generator.get_state();
  LayerProfile profile;
  Tensors tensors = sample_inputs;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> shared;
  for (const Layer& layer : layers) {
    const auto found = layer.tie() ? shared.find(layer.tie()->key) : shared.end();
    const bool again = found != shared.end();
    const BuiltLayer built = again ? layer.share(found->second) : layer.build();
    if (layer.tie()) {
      shared[layer.tie()->key] = built.module;
    }
    Tensors outputs;
    profile.seconds.push_back(seconds_of(built, tensors, outputs));
    double parameters = 0;
    if (built.module && !again) {
      for (const at::Tensor& parameter : built.module->parameters()) {
        parameters += parameter.requires_grad() ? static_cast<double>(parameter.nbytes()) : 0;
        parameter.mutable_grad().reset();
      }
    }
    profile.parameter_bytes.push_back(parameters);
    double activations = 0;
    for (const at::Tensor& output : outputs) {
      activations += output.defined() ? static_cast<double>(output.nbytes()) : 0;
    }
    profile.activation_bytes.push_back(activations);
    tensors = as_leaves(outputs);
  }
  generator.set_state(random_state);
  return profile;
}

} // namespace trireme::pipeline
