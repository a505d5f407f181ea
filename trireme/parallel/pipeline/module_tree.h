#pragma once

#include <string>

namespace torch::nn {
class Module;
}

namespace trireme::pipeline {

/// The module "transformer.h.0" below `root`. Makes plain modules for missing
/// names.
torch::nn::Module& module_at(torch::nn::Module& root, const std::string& path);

} // namespace trireme::pipeline
