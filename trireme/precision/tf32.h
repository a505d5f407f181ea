#pragma once

namespace trireme::precision {

/// Whether libtorch may compute products and convolutions of fp32 on GPUs with tensor cores in TF32 from now on: 10
/// bits of mantissa in the factors, sums in fp32. About 5 to 8 times as fast. For the whole process; the CPU computes
/// as before. libtorch's own default: convolutions alone.
void allow_tf32(bool allowed);

} // namespace trireme::precision
