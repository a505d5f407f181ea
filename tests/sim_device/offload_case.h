#pragma once

#include "engine_case.h"

#include <trireme/offload/options.h>

#include <ATen/Parallel.h>

#include <memory>
#include <optional>

// A run whose states are on the host of the simulated device.
namespace trireme::engine {

struct Offloaded {
  Case run;
  double ratio = 1;
  bool pinned = true;
  offload::Place parameters = offload::Place::device;
  bool delayed = false;
  std::optional<int64_t> shard_size = std::nullopt;
};

inline InitializeOptions options_of(const Offloaded& one, at::Device device, const mesh::Mesh& mesh) {
  InitializeOptions options = options_of(one.run, device, mesh);
  options.config.zero.shard_size = one.shard_size;
  if (!device.is_cpu()) {
    offload::Options& offload = options.config.offload;
    offload.optimizer.place = offload::Place::host;
    offload.optimizer.ratio = one.ratio;
    offload.optimizer.pin_memory = one.pinned;
    offload.optimizer.delayed_update = one.delayed;
    offload.parameters.place = one.parameters;
    offload.parameters.pin_memory = one.pinned;
  }
  return options;
}

/// On the CPU nothing is moved.
inline std::shared_ptr<Engine> engine_of(comm::World& world, const Offloaded& one, at::Device device) {
  return initialize(world, options_of(one, device, mesh_of(world, one.run))).engine;
}

/// start() for ranks that compute with one thread: with several, small kernels on a busy machine wait for each other.
inline void start_single_threaded() {
  start();
  at::set_num_threads(1);
}

/// Losses and norms of these steps.
inline void train_steps(Engine& engine, int steps, Seen& seen) {
  for (int i = 0; i < steps; ++i) {
    engine.train_batch();
    add_step(seen, engine);
  }
}

} // namespace trireme::engine
