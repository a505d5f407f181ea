#pragma once

#include <trireme/shards/bucket/flat_parameters.h>

#include <string>

namespace torch::nn {
class Module;
}

namespace trireme::bucket {

/// The parameters and buffers of a module, with `prefix` before each name. One tensor under two names is listed twice.
NamedTensors tensors_of(const torch::nn::Module& module, const std::string& prefix = "");

/// Refuses distinct tensors that share memory (by set_data(), or as views) if one of them is trained: as views of a
/// flat buffer they would separate. Disjoint parts of one memory are allowed. Errors: InputError that names both.
void refuse_shared_memory(const NamedTensors& tensors);

} // namespace trireme::bucket
