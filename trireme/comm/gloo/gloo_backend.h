#pragma once

#include <trireme/comm/backends.h>

namespace trireme::comm {

/// Opens a group over the gloo that is inside libtorch (c10d::ProcessGroupGloo), with all
/// connections made before it returns.
///
/// CPU tensors of float, double, half, bfloat16 and integers. Bytes sent by a rank, P bytes
/// and N ranks: all_reduce 2P(N-1)/N (ring); reduce_scatter P(N-1)/N (all_to_all into a
/// temporary of P bytes, added in rank order, half and bfloat16 in float); all_gather and
/// all_to_all P(N-1)/N; broadcast P for each child in a binomial tree, so P*ceil(log2 N) at
/// the root; send P.
/// Errors: Trouble when a member does not connect within the time of the setup.
std::shared_ptr<Backend> connect_gloo(const GroupSetup& setup);

} // namespace trireme::comm
