#pragma once

#include <trireme/comm/group.h>
#include <trireme/shards/bucket/flat_parameters.h>

#include <cstdint>

namespace trireme::zero {

/// All-gathers one bucket of parameters. Wait for the Work before reading the parameters. Shards on the host are
/// copied to the GPU on a separate stream, which waits for the work queued on the current stream so far, and gathered
/// from there; later computation waits for neither. A rank alone copies nothing: its parameters are its shard, in the
/// memory of their store. Cost: each rank sends P(N-1)/N bytes for a bucket of P bytes, and copies P/N bytes from the
/// host.
comm::Work gather_bucket(const comm::Group& group, bucket::FlatParameters& parameters, int64_t bucket);

} // namespace trireme::zero
