#pragma once

#include "commands.h"

#include <iosfwd>

namespace trireme::tools {

/// Times what a device does with its own memory. Rows, in this order:
/// - device: name, memory_bytes, free_bytes, driver, compute (capability), libtorch, kernels (Trireme's own or ATen's).
/// - copy: bytes (read and written), us, gb_per_s.
/// - product: of matrices in fp32, on GPUs tf32, and bf16: tflops, and of_peak for GPUs of device/card_peaks.h.
/// - kernel: each of Trireme's own on that device (fused/row_kernels.h, and optimizers as in `bench optim`): kernel,
///   dtype, bytes (that it must read and write), us, gb_per_s, of_copy (that over the copy's).
///
/// `repeats` calls are launched one after the other and timed as a whole. Returns the exit status. Needs the memory of
/// `bytes` twice, and 34 bytes per parameter. Errors: InputError for a device that is not there, for another kind of
/// row, and for sizes that do not fit each other.
int bench_device(const BenchDeviceCommand& command, std::ostream& out);

} // namespace trireme::tools
