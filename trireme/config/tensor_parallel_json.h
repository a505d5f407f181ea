#pragma once

#include <trireme/config/key_check.h>
#include <trireme/parallel/tensor/split_rules.h>

namespace trireme::config {

/// Reads engine.tensor_parallel. Errors: InputError with the place, for conflicting keys and for invalid
/// regular expressions.
tensor::TensorParallelKeys read_tensor_parallel(const Values& values);

} // namespace trireme::config
