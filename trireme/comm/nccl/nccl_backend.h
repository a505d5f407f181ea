#pragma once

#include <trireme/comm/backends.h>

namespace trireme::comm {

/// Opens a group over the NCCL that is inside libtorch (c10d::ProcessGroupNCCL), on the GPU of setup.device (the
/// current one if it has no number), whatever the current GPU of a calling thread. One communicator is for collectives;
/// Backend::open_messages() creates those of messages (lanes.h).
///
/// CUDA tensors of float, double, half, bfloat16, uint8, int8, int32 and int64; none on the CPU. Operations run on
/// their own stream, which first waits for the current one. As usual in libtorch, Work::wait() makes the current
/// *stream* wait, not the thread. Results are in order for every kernel launched after it, the host runs ahead, and the
/// host may read a tensor after the usual synchronisation (item(), cpu()). Work::done() checks whether the GPU has
/// finished. TORCH_NCCL_BLOCKING_WAIT=1 makes wait() block the thread too. Because the host does not wait, the watch
/// (Watch) notices a deadline. It ends the communicators, so that synchronisation returns, and the next call on the
/// group throws. libtorch's watchdog thread would do so 30 s later. Messages between two ranks arrive in the order of
/// sending; NCCL has no tags, so a receive takes the next message whatever its tag. Bytes sent, P bytes and N ranks, by
/// the closed forms of NCCL's rings: all_reduce 2P(N-1)/N; reduce_scatter, all_gather and all_to_all P(N-1)/N;
/// broadcast P at every rank but the last; send P. Errors: Trouble when a member does not connect within the time of
/// the setup or the GPUs cannot reach each other.
std::shared_ptr<Backend> connect_nccl(const GroupSetup& setup);

/// True if this build has NCCL and this machine a GPU.
bool nccl_available();
/// "2.27.3"; "" in a build without it.
std::string nccl_version();
/// Names the GPU uniquely on this host, whatever CUDA_VISIBLE_DEVICES: NCCL refuses two ranks on one
/// GPU.
std::string nccl_card(at::Device device);

} // namespace trireme::comm
