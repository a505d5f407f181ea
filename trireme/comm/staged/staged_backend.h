#pragma once

#include <trireme/comm/backends.h>

namespace trireme::comm {

/// How a staged backend works.
struct StagedOptions {
  /// A tensor goes in pieces of about this many bytes, so that the copy to the host, the host's operation and the copy
  /// back overlap.
  int64_t piece_bytes = 4 << 20;
  /// Pieces that are on their way to the host at once.
  int ahead = 3;
};

/// Moves tensors of any device through pinned host memory and `host`, which serves nothing else and which it closes.
///
/// An operation begins after what is on the current stream when it is called. Copies run on two streams of the
/// backend's own; threads of the backend run the host's operations: one the collectives, in order, one hands over
/// messages. Receives are posted at once, and copied to the device by whoever waits or asks. Work::wait() holds the
/// host until the device has come to the tensor and the host's operation is done; only the copy back is not waited for:
/// the current stream is ordered after it. device::host_waits() does not count that. Work::done() asks whether the copy
/// back is done. Results are the bits of `host` for the same data where the tensor is one piece, over shared memory
/// always. Cost: twice the tensor over the device's link beside the host's operation; pinned memory of `ahead` + 2
/// pieces, and of messages as large as those under way. `type` may be the CPU, for tests.
std::shared_ptr<Backend> make_staged_backend(std::shared_ptr<Backend> host, at::DeviceType type,
                                             const StagedOptions& options = {});

/// Opens the group over a second instance of its host backend (GroupSetup::connect_host), for tensors of setup.device.
std::shared_ptr<Backend> connect_staged(const GroupSetup& setup);

} // namespace trireme::comm
