#pragma once

#include <trireme/optim/device_kernels.h>

namespace trireme::optim {

/// For devices without kernels of our own, PrivateUse1 among them: ATen's operators. Adam and AdamW in fp32 take ATen's
/// fused kernel where the device has it (CUDA), one pass, which leaves the scaled gradients behind; the others take
/// about ten passes over memory, in pieces, and some temporary arrays of 16 MB. Formulas and their order are those of
/// kernels/optimizer_args.h in fp32, but a product and a sum are rounded twice where the compiled kernels round once:
/// results of a step are up to 4 ulps apart (numbers below 1 count as 1). bf16 states are rounded with the same random
/// bits (kernels/stochastic.h) of the number that is rounded. Needs fp64 and int64 on the device. The same bits in
/// every run where the device's operators have them. Errors: Error for 8-bit states.
extern const DeviceKernels kAtenKernels;

} // namespace trireme::optim
