#pragma once

#include <trireme/kernels/optimizer_args.h>

#include <cstdint>

/// The optimizer kernels for CUDA, over raw GPU pointers: the same arguments, rules (optimizer_rules.h) and
/// correctly rounded operations as on the CPU, so elements have the same bits. A warp has kStateBlock elements, reads
/// all arrays before it writes any, and moves 4 elements of an array at a time (16 bytes of fp32) where arrays and
/// ranges begin at multiples of 4. All return after the launch; the stream reports later errors.
///
/// `stream` is a cudaStream_t. Ranges as on the CPU. Errors: Error with CUDA's message when the launch
/// fails.
namespace trireme::kernels::cuda {

/// Each steps `count` segments in one launch per 48 segments, 8 rows and 4096 blocks of 2048 elements. Rows on the host
/// are read before it returns.
void adam(const AdamArgs& args, const Segment* segments, int64_t count, void* stream);
void sgd(const SgdArgs& args, const Segment* segments, int64_t count, void* stream);
void lion(const LionArgs& args, const Segment* segments, int64_t count, void* stream);
void adagrad(const AdagradArgs& args, const Segment* segments, int64_t count, void* stream);
void rmsprop(const RmspropArgs& args, const Segment* segments, int64_t count, void* stream);

/// Doubles that the kernels below need for partial sums, in GPU memory of the caller, for one stream at a time.
inline constexpr int64_t kPartials = 2 * 4096;

/// Converts 8-bit states of elements [0, n) to fp32 and back, rounded to nearest.
void decode_state(const StateArray& state, bool is_signed, int64_t n, float* to, void* stream);
void encode_state(const StateArray& state, bool is_signed, int64_t n, const float* from, void* stream);

/// Adds the sum of squares of x[0, n) to *sum (GPU memory). Bit-equal in every run.
void squared_norm(const void* x, Element type, int64_t n, double* partials, double* sum, void* stream);

/// LAMB's first phase: adds the LambSums of each segment to sums[2p] and sums[2p + 1] of its parameter p (GPU memory),
/// the same bits in every run. Two launches where others need one.
void lamb_moments(const LambArgs& args, const Segment* segments, int64_t count, double* partials, double* sums,
                  void* stream);
/// The second phase, with the parameters' sums over all ranks; ignores args.step_size.
void lamb_apply(const LambArgs& args, const Segment* segments, int64_t count, const double* sums,
                const LambScale& scale, void* stream);

} // namespace trireme::kernels::cuda
