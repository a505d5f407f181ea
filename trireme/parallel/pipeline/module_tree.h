#pragma once

#include <string>

namespace torch::nn {
class Module;
}

namespace trireme::pipeline {

/// The module "transformer.h.0" below `root`; plain modules are made where none of that name are, for the sake of the
/// names alone.
torch::nn::Module& module_at(torch::nn::Module& root, const std::string& path);

} // namespace trireme::pipeline
