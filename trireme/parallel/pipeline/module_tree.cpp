#include <trireme/parallel/pipeline/module_tree.h>

#include <trireme/base/text.h>

#include <torch/nn/module.h>

namespace trireme::pipeline {

torch::nn::Module& module_at(torch::nn::Module& root, const std::string& path) {
  torch::nn::Module* at = &root;
  for (const std::string& name : split(path, '.')) {
    const auto children = at->named_children();
    const auto* found = children.find(name);
    at = found != nullptr ? found->get() : at->register_module(name, std::make_shared<torch::nn::Module>()).get();
  }
  return *at;
}

} // namespace trireme::pipeline
