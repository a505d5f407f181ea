#pragma once

#include <trireme/comm/backend.h>
#include <trireme/kernels/kernels.h>

namespace trireme::comm {

/// The kernels' name of `type`. Errors: Error saying that `op` of this type is not possible over `carrier`.
kernels::Element element_of(at::ScalarType type, const char* op, const char* carrier);

/// The kernels' name of `op`.
kernels::Combine combine_of(ReduceOp op);

/// Reduces `parts`, which holds [parts.numel() / out.numel()] slices one after the other, into `out`, first slice first; half and
/// bfloat16 are added in float and rounded once. `out` may be one of the slices. On the calling thread alone.
void combine_slices(const at::Tensor& out, const at::Tensor& parts, kernels::Element element, ReduceOp op);

} // namespace trireme::comm
