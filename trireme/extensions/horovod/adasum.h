#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

namespace trireme::horovod {

/// Returns (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, which averages parallel parts and adds perpendicular ones. Both
/// have one shape and a floating-point type. Source: Maleki et al. 2020, arXiv:2006.02924.
at::Tensor adasum_of(const at::Tensor& a, const at::Tensor& b);

/// Combines `tensor` of all ranks in place, as one vector: neighbours first, then pairs of pairs. The number of ranks
/// must be a power of two. All ranks get the same bits. Collective. Cost for P bytes and N ranks: each rank sends
/// P(N-1), and uses NP bytes of temporary memory.
void adasum(const comm::Group& ranks, at::Tensor tensor);

} // namespace trireme::horovod
