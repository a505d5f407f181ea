#pragma once

#include <trireme/comm/backends.h>

namespace trireme::comm {

/// Settings of a staged backend.
struct StagedOptions {
  /// A tensor is sent in pieces of about this many bytes, so that the copy to the host, the host's operation and the
  /// copy back overlap.
  int64_t piece_bytes = 4 << 20;
  /// Pieces copied to the host ahead of its operations.
  int ahead = 3;
};

/// Moves tensors of any device through pinned host memory and `host`, which serves nothing else and which it closes.
///
/// An operation begins after the work on the current stream at its call. Copies run on two streams of the backend; its
/// threads run the host's operations: one the collectives, in order, one sends messages. Receives are posted at once,
/// and copied to the device by the thread that waits or polls. Work::wait() blocks the host until the device has
/// reached the tensor and the host's operation is done. It does not wait for the copy back: the current stream is
/// ordered after it. device::host_waits() does not count that. Work::done() polls the copy back. Results are the bits
/// of `host` for the same data if the tensor is one piece, over shared memory always. Cost: twice the tensor over the
/// device's link besides the host's operation; pinned memory of `ahead` + 2 pieces, and of the messages in progress.
/// `type` may be the CPU, for tests.
std::shared_ptr<Backend> make_staged_backend(std::shared_ptr<Backend> host, at::DeviceType type,
                                             const StagedOptions& options = {});

/// Opens the group over a second instance of its host backend (GroupSetup::connect_host), for tensors of setup.device.
std::shared_ptr<Backend> connect_staged(const GroupSetup& setup);

} // namespace trireme::comm
