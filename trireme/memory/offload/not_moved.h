#pragma once

#include <trireme/memory/offload/options.h>

#include <cstdint>
#include <string>

namespace trireme::offload {

/// A note on offload_param: a rank has no sharded parameters at all, or of its `all` elements of them, of
/// `element_bytes` each, `kept` stay in memory, as max_in_cpu, which is large by default, says. Empty: all are moved.
std::string what_is_not_moved(int64_t all, int64_t kept, int64_t element_bytes, const ParameterOptions& options,
                              int64_t persistence_threshold);

} // namespace trireme::offload
