#pragma once

#include <trireme/optim/device_kernels.h>

namespace trireme::optim {

/// ATen's operators, for devices without kernels of our own, PrivateUse1 among them. Adam and AdamW in fp32 use ATen's
/// fused kernel if the device has it (CUDA): one pass, which leaves the scaled gradients behind. The other optimizers
/// make about ten passes over memory, in pieces, with some temporary arrays of 16 MB.
///
/// Formulas and their order are those of kernels/optimizer_args.h in fp32. A product and a sum are rounded twice,
/// though, where the compiled kernels round once: results of a step differ by up to 4 ulps (numbers below 1 count as
/// 1). The random bits that round bf16 states (kernels/stochastic.h) are the same for the same number. Needs fp64 and
/// int64 on the device. Every run gives the same bits if the device's operators do. Errors: Error for 8-bit states.
extern const DeviceKernels kAtenKernels;

} // namespace trireme::optim
