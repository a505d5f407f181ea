#pragma once

#include "device_check.h"

#include <trireme/comm/group.h>

#include <string>
#include <vector>

namespace trireme::tools {

/// The checked operations, in order: "all_reduce", ..., "send/recv", "barrier".
const std::vector<std::string>& checked_collectives();

/// Runs each of them on tensors of the device, in every type, and compares the results with their formula. Returns the
/// same findings on every rank, naming the ranks with wrong results. Collective. Errors: PeerError when a rank is
/// missing.
std::vector<DeviceFinding> check_collectives(const comm::Group& group, c10::Device device);

/// The same in a group of one over a backend for several (comm/lone_group.h), without messages.
std::vector<DeviceFinding> check_collectives_alone(const std::string& backend, c10::Device device);

/// Runs a rank that check_all_collectives() has started: rank 0 prints a JSON object for each finding. `device`: "cpu",
/// "cuda" (the GPU with the rank's number) or "cuda:K". With a `backend` it is check_collectives_alone().
int check_collectives_as_rank(const std::string& device, const std::string& backend = "");

/// Runs the check in separate jobs, one for each backend of this machine. Two ranks on the CPU use shared memory, gloo
/// and, if mpirun is installed, MPI. One rank per GPU uses NCCL; where there is one GPU, a rank alone
/// (check_collectives_alone()). Two ranks on the first GPU use staged. Returns one finding per operation, and one per
/// failed job. Cost: seconds, mostly to load libtorch in each rank. A job that does not end is killed.
std::vector<DeviceFinding> check_all_collectives(int cards);

} // namespace trireme::tools
