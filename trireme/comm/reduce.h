#pragma once

#include <trireme/comm/backend.h>
#include <trireme/kernels/kernels.h>

namespace trireme::comm {

/// The kernels' value for `type`. Errors: Error that `op` of this type is not possible over `carrier`.
kernels::Element element_of(at::ScalarType type, const char* op, const char* carrier);

/// The kernels' value for `op`.
kernels::Combine combine_of(ReduceOp op);

/// Reduces the slices of `parts` ([parts.numel() / out.numel()] of them) into `out`, first slice first; half and
/// bfloat16 are added in float and rounded once. `out` may be one of the slices. Runs on the calling thread only.
void combine_slices(const at::Tensor& out, const at::Tensor& parts, kernels::Element element, ReduceOp op);

} // namespace trireme::comm
