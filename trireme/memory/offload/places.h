#pragma once

#include <trireme/memory/offload/options.h>

namespace trireme::offload {

/// Whether data at this place are moved from the model's. For a model on the CPU, host memory is where the model is.
constexpr bool is_elsewhere(Place place, bool on_device) {
  return place == Place::nvme || (place == Place::host && on_device);
}

/// Whether a GPU's model is built on its host and moves when it is copied into flat buffers, so that the GPU never has
/// it twice. This is done where the states are not on the GPU: there a second copy of the parameters would be the peak.
/// Units of sharded parameters move one by one.
inline bool builds_on_host(const Options& options, bool on_device, bool shards_parameters) {
  return on_device && is_elsewhere(options.optimizer.place, on_device) && !shards_parameters;
}

/// Whether gradients are in files: if masters and parameters both are. `has_copies`: several ranks have the same shard
/// and sum its gradients in memory.
inline bool has_gradients_in_files(const Options& options, bool has_copies) {
  return options.optimizer.place == Place::nvme && options.parameters.place == Place::nvme && !has_copies;
}

} // namespace trireme::offload
