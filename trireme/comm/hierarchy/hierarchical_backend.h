#pragma once

#include <trireme/comm/backends.h>

namespace trireme::comm {

/// True if the members are ordered by host, with the same number, above one, on each of several hosts.
bool hierarchy_suits(const GroupSetup& setup);

/// Opens a group that uses shared memory inside each host and gloo between hosts, named "shm+gloo".
///
/// An all-reduce of P bytes with L ranks on each of H hosts has three steps. (1) A reduce-scatter inside each host. (2)
/// An all-reduce of P/L between the l-th ranks of all hosts, all l at the same time. (3) An all-gather inside each
/// host. A host sends 2P(H-1)/H; a flat ring sends 2P(N-1)/N over the same link (Thakur, Rabenseifner, Gropp 2005,
/// section 4). The other collectives are divided the same way; all_to_all, and messages between hosts, use gloo
/// directly. Large tensors are sent in chunks, so that link and memory are busy at the same time. The steps run in
/// order on a separate thread. Every rank gets the same bits. Errors: those of the two backends; Trouble when a host
/// cannot use shared memory.
std::shared_ptr<Backend> connect_hierarchy(const GroupSetup& setup);

} // namespace trireme::comm
