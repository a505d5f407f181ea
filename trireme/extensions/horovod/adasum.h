#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

namespace trireme::horovod {

/// (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b: averages what has the same direction, and adds up what is
/// perpendicular. Of one shape; floating point. Source: Maleki et al. 2020, arXiv:2006.02924.
at::Tensor adasum_of(const at::Tensor& a, const at::Tensor& b);

/// Adds up `tensor` of all ranks in place, as one vector: neighbours first, then pairs of pairs. The number of ranks is
/// a power of two. All ranks get the same bits. Collective. Cost for P bytes and N ranks: P(N-1) sent by each rank, and
/// NP bytes of memory meanwhile.
void adasum(const comm::Group& ranks, at::Tensor tensor);

} // namespace trireme::horovod
