#pragma once

#include "engine_case.h"

#include <tests/support/file_store.h>

#include <trireme/memory/offload/options.h>

#include <ATen/Parallel.h>

#include <memory>
#include <optional>

// A run whose states are on the host of the simulated device, or in files.
namespace trireme::engine {

struct Offloaded {
  Case run;
  double ratio = 1;
  bool pinned = true;
  offload::Place parameters = offload::Place::device;
  bool delayed = false;
  std::optional<int64_t> shard_size = std::nullopt;
  offload::Place states = offload::Place::host;
  std::filesystem::path files = {};
  std::optional<activations::Way> way = std::nullopt; // of activations
};

inline InitializeOptions options_of(const Offloaded& one, at::Device device, const mesh::Mesh& mesh) {
  InitializeOptions options = options_of(one.run, device, mesh);
  options.config.zero.shard_size = one.shard_size;
  if (!device.is_cpu()) {
    offload::Options& offload = options.config.offload;
    offload.optimizer.place = one.states;
    offload.optimizer.nvme_path = one.files / "states";
    offload.optimizer.buffer_count = offload.parameters.buffer_count = 3;
    offload.optimizer.pipeline_read = offload.optimizer.pipeline_write = offload.optimizer.fast_init =
        one.parameters == offload::Place::nvme;
    offload.optimizer.ratio = one.ratio;
    offload.optimizer.pin_memory = one.pinned;
    offload.optimizer.delayed_update = one.delayed;
    offload.parameters.place = one.parameters;
    offload.parameters.pin_memory = one.pinned;
    offload.parameters.nvme_path = one.files / "parameters";
    offload.parameters.max_in_cpu = 0;
    options.config.activations = {.policy = one.way, .nvme_path = one.files / "activations", .least_bytes = 0};
  }
  return options;
}

/// On the CPU nothing is moved.
inline std::shared_ptr<Engine> engine_of(comm::World& world, const Offloaded& one, at::Device device) {
  return initialize(world, options_of(one, device, mesh_of(world, one.run))).engine;
}

/// Files of the host: any store may say so.
class FilesOfTheHost final : public test::FileStore {
 public:
  using FileStore::FileStore;
  std::vector<bool> on_host(const std::vector<int64_t>& numel, at::Device) override {
    return std::vector<bool>(numel.size(), true);
  }
};

/// start() for ranks that compute with one thread: with several, small kernels on a busy machine wait for each other.
inline void start_single_threaded() {
  start();
  at::set_num_threads(1);
}

/// A single rank shards its parameters only if they are elsewhere, and then adds up the squares of its gradients in
/// another order.
inline bool has_other_norms(const comm::World& world, const Offloaded& one) {
  return world.size() == one.run.stages && one.parameters != offload::Place::device;
}

/// Numbers are losses and norms in turn; norms are near each other and count no further.
inline void expect_same_but_norms(Seen seen, const Seen& expected) {
  for (size_t i = 1; i < seen.numbers.size(); i += 2) {
    EXPECT_NEAR(seen.numbers[i], expected.numbers[i], 1e-9);
    seen.numbers[i] = expected.numbers[i];
  }
  expect_same(seen, expected);
}

/// Losses and norms of these steps.
inline void train_steps(Engine& engine, int steps, Seen& seen) {
  for (int i = 0; i < steps; ++i) {
    engine.train_batch();
    add_step(seen, engine);
  }
}

} // namespace trireme::engine
