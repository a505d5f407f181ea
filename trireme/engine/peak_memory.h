#pragma once

#include <cstdint>

namespace trireme::engine {

/// The largest memory of this rank so far, bytes: what it adds to its host's use.
///
/// What it sees of other ranks' shared memory counts in the system's figure of it (VmHWM), and comes and goes with
/// them. So, where memory is shared, a thread looks at this rank's own every 20 ms from the first call on; before that,
/// and elsewhere, it is VmHWM.
int64_t peak_memory_bytes();

} // namespace trireme::engine
