#pragma once

#include <trireme/comm/backend.h>
#include <trireme/comm/group_setup.h>

#include <memory>

namespace trireme::comm {

/// Bytes of a collective's tensor that are copied, sent and copied back together: while one piece is with the other ranks, the next is
/// on its way to the host.
inline constexpr int64_t kStagedPieceBytes = 4 << 20;

/// Moves tensors of any kind of GPU through pinned host memory, over backends of the host that it opens for itself
/// (GroupSetup::connect_host): for GPUs without NCCL.
///
/// Nothing waits for the GPU but a thread of its own. Pending::wait() returns when the copy back is launched, and makes the current stream
/// wait for it. Results are the host backend's. Cost: a copy of what is sent and of what is received beside the host backend's.
/// Errors: those of connecting the host's backends.
std::shared_ptr<Backend> connect_staged(const GroupSetup& setup);

/// The same over these backends: one for collectives, one for messages.
std::shared_ptr<Backend> make_staged_backend(std::shared_ptr<Backend> collectives, std::shared_ptr<Backend> messages, std::chrono::milliseconds timeout,
                                             int64_t piece_bytes = kStagedPieceBytes);

} // namespace trireme::comm
