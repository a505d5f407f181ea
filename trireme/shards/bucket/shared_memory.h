#pragma once

#include <trireme/shards/bucket/flat_parameters.h>

#include <string>

namespace torch::nn {
class Module;
}

namespace trireme::bucket {

/// The parameters and buffers of a module, `prefix` before each name; one tensor under two names is there twice.
NamedTensors tensors_of(const torch::nn::Module& module, const std::string& prefix = "");

/// Refuses tensors that show the same memory without being one tensor (by set_data(), or as views), when one of them is
/// trained: as views on a flat buffer they would go apart. Disjoint parts of one memory are fine. Errors: InputError
/// that names both.
void refuse_shared_memory(const NamedTensors& tensors);

} // namespace trireme::bucket
