#pragma once

#include <trireme/memory/offload/options.h>

#include <cstdint>
#include <string>

namespace trireme::offload {

/// A note if offload_param moves less than expected. Either a rank has no sharded parameters, or `kept` of its `all`
/// elements, of `element_bytes` each, stay in memory because of max_in_cpu, whose default is large. Empty: all are
/// moved.
std::string what_is_not_moved(int64_t all, int64_t kept, int64_t element_bytes, const ParameterOptions& options,
                              int64_t persistence_threshold);

} // namespace trireme::offload
