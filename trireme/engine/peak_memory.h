#pragma once

#include <cstdint>

namespace trireme::engine {

/// The largest memory that this rank has added to its host's use so far, in bytes.
///
/// The system's figure (VmHWM) also counts pages of other ranks' shared memory. If memory is shared, a thread samples
/// this rank's own memory every 20 ms, from the first call on. Before that, and without shared memory, the result is
/// VmHWM.
int64_t peak_memory_bytes();

} // namespace trireme::engine
