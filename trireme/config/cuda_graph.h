#pragma once

namespace trireme::config {

/// Whether forward and backward of a step are recorded as a CUDA graph and replayed with one launch.
enum class CudaGraph {
  off,
  automatic, ///< where it is possible; otherwise the step runs launch by launch, and a line says why
  on,        ///< or an InputError says why not
};

} // namespace trireme::config
