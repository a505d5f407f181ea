#pragma once

#include <cstdint>

namespace trireme::engine {

/// The largest resident memory of this rank so far, bytes, without what it sees of other ranks' shared memory: what the rank
/// adds to its host's use. Cost: milliseconds.
int64_t peak_memory_bytes();

} // namespace trireme::engine
