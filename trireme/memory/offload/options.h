#pragma once

#include <trireme/memory/aio/options.h>

#include <cstdint>
#include <string>

namespace trireme::offload {

/// Where something is while it is not used.
enum class Place {
  /// Where the model is: DeepSpeed's "none".
  device,
  /// In the host's memory: "cpu".
  host,
  /// In files: "nvme".
  nvme,
};

/// DeepSpeed's word for it: "none", "cpu", "nvme".
constexpr const char* word(Place place) {
  return place == Place::device ? "none" : place == Place::host ? "cpu" : "nvme";
}

/// Elements of a bucket whose masters and states, or gradients, move between files and the host's memory at a time: 32
/// MiB of Adam's states in fp32. Buckets of usual size are one chunk: a quarter of this cost a step 15 %.
inline constexpr int64_t kChunkElements = int64_t{1} << 22;

/// Masters, optimizer states and, on a device, gradients, which are in files where parameters are too:
/// "offload_optimizer" of "zero_optimization".
struct OptimizerOptions {
  Place place = Place::device;
  /// The folder of the files; each rank makes a folder of its own in it.
  std::string nvme_path = {};
  /// Chunks of kChunkElements that have memory on the host at a time, at least 3: one is read and one written while one
  /// is stepped. Gradients of a GPU: buckets.
  int64_t buffer_count = 4;
  bool pin_memory = true;
  /// Reads the next chunk, and writes the one before, while one is stepped.
  bool pipeline_read = false;
  bool pipeline_write = false;
  /// Leaves out the first write of the states: what was never written is read as its initial value.
  bool fast_init = false;
  /// Share of the elements that is moved; the rest stays where the model is.
  double ratio = 1;
  /// Steps with the gradients of the step before, while the device computes the next ones (ZeRO-Offload's delayed
  /// parameter update).
  bool delayed_update = false;
};

/// Shards of parameters at ZeRO stage 3: "offload_param".
struct ParameterOptions {
  Place place = Place::device;
  std::string nvme_path = {};
  /// Buckets that have memory on the host at a time, at least 3.
  int64_t buffer_count = 5;
  /// Elements that stay in the host's memory although the place is nvme.
  int64_t max_in_cpu = 1'000'000'000;
  bool pin_memory = true;
};

/// What is moved to cheaper memory between uses. Source: Ren et al. 2021, arXiv:2101.06840 (ZeRO-Offload); Rajbhandari
/// et al. 2021, arXiv:2104.07857 (ZeRO-Infinity).
struct Options {
  OptimizerOptions optimizer;
  ParameterOptions parameters;
  aio::Options aio;

  bool uses_files() const {
    return optimizer.place == Place::nvme || parameters.place == Place::nvme;
  }
};

} // namespace trireme::offload
