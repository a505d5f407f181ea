#pragma once

#include <trireme/config/key_check.h>
#include <trireme/parallel/tensor/split_rules.h>

namespace trireme::config {

/// Reads engine.tensor_parallel. Errors: InputError with the place, for what does not go together and for patterns that
/// are no expressions.
tensor::TensorParallelKeys read_tensor_parallel(const Values& values);

} // namespace trireme::config
