#include <trireme/memory/offload/not_moved.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

namespace trireme::offload {
std::string what_is_not_moved(int64_t all, int64_t kept, int64_t element_bytes, const ParameterOptions& options,
                              int64_t persistence_threshold) {
  const std::string key = concat("offload_param to \"", word(options.place), '"');
  if (all == 0) {
    return concat(key, " moves nothing: each parameter has fewer than ", persistence_threshold,
                  " elements (stage3_param_persistence_threshold), so every rank keeps it in full. To move them: a "
                  "smaller threshold");
  }
  if (kept == 0) {
    return "";
  }
  return concat(key, ": ", kept == all ? "all" : concat(kept, " of the"), ' ', all,
                " elements of this rank's sharded parameters, ", format_bytes(kept * element_bytes),
                ", stay in memory, because max_in_cpu is ", options.max_in_cpu,
                ". To have them in files: \"max_in_cpu\": 0");
}

} // namespace trireme::offload
