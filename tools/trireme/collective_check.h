#pragma once

#include "device_check.h"

#include <trireme/comm/group.h>

#include <string>
#include <vector>

namespace trireme::tools {

/// The operations that are checked, in order: "all_reduce", ..., "send/recv", "barrier".
const std::vector<std::string>& checked_collectives();

/// Runs each of them on tensors of the device and compares the results with their formula; the same findings on every
/// rank, naming the ranks that got something else. Collective. Errors: PeerError when a rank does not come.
std::vector<DeviceFinding> check_collectives(const comm::Group& group, c10::Device device);

/// What a rank does that check_all_collectives() has started: rank 0 prints a JSON object for each finding. `device`:
/// "cpu", "cuda" (the card of the rank's number) or "cuda:K".
int check_collectives_as_rank(const std::string& device);

/// Runs the check in jobs of their own, one for each backend of this machine: two ranks on the CPU over shared memory,
/// gloo and, where mpirun is installed, MPI; a rank on each card over NCCL; two ranks on the first card over staged. A
/// finding for each operation, and one for each job that did not end well. Cost: seconds, most of them to load libtorch
/// in each rank. A job that does not end is killed.
std::vector<DeviceFinding> check_all_collectives(int cards);

} // namespace trireme::tools
