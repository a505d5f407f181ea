#pragma once

#include <trireme/memory/offload/options.h>

namespace trireme::offload {

/// Whether this is another place than the model's. On the CPU the host's memory is where the model is.
constexpr bool is_elsewhere(Place place, bool on_device) {
  return place == Place::nvme || (place == Place::host && on_device);
}

/// Whether gradients are in files: where masters and parameters both are. `has_copies`: several ranks have the same
/// shard, and add up their gradients where they lie.
inline bool has_gradients_in_files(const Options& options, bool has_copies) {
  return options.optimizer.place == Place::nvme && options.parameters.place == Place::nvme && !has_copies;
}

} // namespace trireme::offload
