#pragma once

#include <trireme/comm/backends.h>

namespace trireme::comm {

/// Opens a group over the NCCL that is inside libtorch (c10d::ProcessGroupNCCL), on the card of setup.device (the
/// current one where it has no number), whatever the current card of a thread that calls it. One communicator for
/// collectives; Backend::open_messages() makes those of messages (lanes.h).
///
/// CUDA tensors of float, double, half, bfloat16, uint8, int8, int32 and int64, and nothing on the CPU. Operations run
/// on a stream of their own that first waits for the current one. As everywhere in libtorch, Work::wait() makes the
/// current *stream* wait, not the thread: results are in order for every kernel launched after it, the host runs ahead,
/// and a tensor may be read on the host after the usual synchronisation (item(), cpu()). Work::done() asks whether the
/// card has finished. TORCH_NCCL_BLOCKING_WAIT=1 makes wait() block the thread too. Because the host does not wait, the
/// watch notices a deadline (Watch): it ends the communicators, so that synchronisation returns, and the next call on
/// the group throws. libtorch's watchdog thread would do so 30 s later.
/// Messages between two ranks arrive in the order of sending; NCCL knows no tags, so a receive takes the next one
/// whatever its tag. Bytes sent, P bytes and N ranks, by the closed forms of NCCL's rings: all_reduce 2P(N-1)/N;
/// reduce_scatter, all_gather and all_to_all P(N-1)/N; broadcast P at every rank but the last; send P. Errors: Trouble
/// when a member does not come within the time of the setup or the cards cannot reach each other.
std::shared_ptr<Backend> connect_nccl(const GroupSetup& setup);

/// This build has NCCL and this machine a card.
bool nccl_available();
/// "2.27.3"; "" in a build without it.
std::string nccl_version();
/// Names the card among those of this host, whatever numbers CUDA_VISIBLE_DEVICES gives them: NCCL refuses two ranks on
/// one.
std::string nccl_card(at::Device device);

} // namespace trireme::comm
