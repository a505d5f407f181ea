#pragma once

#include <trireme/comm/backends.h>

namespace trireme::comm {

/// Whether the members lie host by host, several on each of several hosts, equally many on each.
bool hierarchy_suits(const GroupSetup& setup);

/// Opens a group that uses shared memory inside each host and gloo between hosts, named "shm+gloo".
///
/// With L ranks on each of H hosts an all-reduce of P bytes is a reduce-scatter inside each host, an all-reduce of P/L
/// between the l-th ranks of all hosts (all l at the same time) and an all-gather inside each host: a host sends
/// 2P(H-1)/H, where a flat ring sends 2P(N-1)/N over the same link (Thakur, Rabenseifner, Gropp 2005, section 4). The
/// other collectives are divided the same way; all_to_all, and messages between hosts, go over gloo directly. Large
/// tensors go in chunks, so that the link and the memory are busy at the same time. A thread of its own does the steps
/// in order. Every rank gets the same bits. Errors: as of the two backends; Trouble when any host cannot use shared
/// memory.
std::shared_ptr<Backend> connect_hierarchy(const GroupSetup& setup);

} // namespace trireme::comm
