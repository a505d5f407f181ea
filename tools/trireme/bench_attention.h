#pragma once

#include "commands.h"

#include <iosfwd>

namespace trireme::tools {

/// Times attention, forward and backward, in turns: of each kind of layout, and in any case of all keys by libtorch's
/// scaled_dot_product_attention. Rows: kind, impl (`trireme`, or `sdpa` for all keys), length, density, forward_ms,
/// backward_ms (medians), peak_bytes (tensors of one forward and backward beside the inputs and the gradient of the
/// result) and `speedup`: sdpa's time over this one's, forward and backward together, the median over the rounds. Its
/// limit is 1 / density, printed as `limit`. Returns the exit status. Errors: InputError for layouts that do not fit.
int bench_attention(const BenchAttentionCommand& command, std::ostream& out);

} // namespace trireme::tools
