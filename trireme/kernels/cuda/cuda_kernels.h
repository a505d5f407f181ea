#pragma once

#include <trireme/kernels/optimizer_args.h>

#include <cstdint>

/// The optimizer kernels on CUDA devices, over raw device pointers: the same arguments, the same rules
/// (optimizer_rules.h) and the same correctly rounded operations as on the CPU, so elements have the same bits. One
/// thread an element, one block of threads for each kStateBlock elements. All return after the launch; what goes wrong
/// later, the stream says.
///
/// `stream` is a cudaStream_t. Ranges as on the CPU. Errors: Error with CUDA's message when the launch fails.
namespace trireme::kernels::cuda {

void adam(const AdamArgs& args, int64_t begin, int64_t end, void* stream);
void sgd(const SgdArgs& args, int64_t begin, int64_t end, void* stream);
void lion(const LionArgs& args, int64_t begin, int64_t end, void* stream);
void adagrad(const AdagradArgs& args, int64_t begin, int64_t end, void* stream);
void rmsprop(const RmspropArgs& args, int64_t begin, int64_t end, void* stream);

/// Doubles that the kernels below need for partial sums: device memory of the caller, one stream at a time.
inline constexpr int64_t kPartials = 2 * 1024;

/// 8-bit states of elements [0, n) to fp32 and back, rounded to nearest.
void decode_state(const StateArray& state, bool is_signed, int64_t n, float* to, void* stream);
void encode_state(const StateArray& state, bool is_signed, int64_t n, const float* from, void* stream);

/// Adds the sum of squares of x[0, n) to *sum (device memory). The same bits in every run.
void squared_norm(const void* x, Element type, int64_t n, double* partials, double* sum, void* stream);

/// LAMB's first phase for one parameter's elements [begin, end): adds to sums[0] and sums[1] (device memory) what
/// LambSums holds.
void lamb_moments(const LambArgs& args, int64_t begin, int64_t end, double* partials, double* sums, void* stream);
/// The second, with the parameter's sums over all ranks, still in device memory; args.step_size is not read.
void lamb_apply(const LambArgs& args, int64_t begin, int64_t end, const double* sums, const LambScale& scale,
                void* stream);

} // namespace trireme::kernels::cuda
