#pragma once

#include <trireme/bucket/flat_parameters.h>
#include <trireme/comm/group.h>

#include <cstdint>

namespace trireme::zero {

/// Brings the ranks' parts of one bucket of parameters together on every rank. Sharded parameters can be read once it
/// was waited for. Parts that are in the host's memory go to the device on a stream of their own, after what the
/// current stream has been given so far, and travel from there: what is computed meanwhile waits for neither. A rank
/// alone copies nothing: its parameters are its part itself, in the memory of their store. Cost: P(N-1)/N bytes sent a
/// rank for a bucket of P bytes; from the host P/N bytes.
comm::Work gather_bucket(const comm::Group& group, bucket::FlatParameters& parameters, int64_t bucket);

} // namespace trireme::zero
