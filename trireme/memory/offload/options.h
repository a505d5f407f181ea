#pragma once

#include <trireme/memory/aio/options.h>

#include <cstdint>
#include <string>

namespace trireme::offload {

/// Location of data between uses.
enum class Place {
  /// With the model: DeepSpeed's "none".
  device,
  /// In host memory: "cpu".
  host,
  /// In files: "nvme".
  nvme,
};

/// DeepSpeed's name for it: "none", "cpu", "nvme".
constexpr const char* word(Place place) {
  return place == Place::device ? "none" : place == Place::host ? "cpu" : "nvme";
}

/// Elements of a bucket whose masters and states, or gradients, are transferred between files and host memory at a
/// time: 32 MiB of Adam's states in fp32. Buckets of usual size are one chunk; a quarter of this size made steps 15 %
/// slower.
inline constexpr int64_t kChunkElements = int64_t{1} << 22;

/// Masters, optimizer states and, on a device, gradients: "offload_optimizer" of "zero_optimization". If parameters are
/// in files too, so are gradients.
struct OptimizerOptions {
  Place place = Place::device;
  /// Folder of the files; each rank makes its own folder in it.
  std::string nvme_path = {};
  /// Chunks of kChunkElements that have host memory at a time, at least 3: one is read and one written while one is
  /// stepped. For gradients of a GPU: buckets.
  int64_t buffer_count = 4;
  bool pin_memory = true;
  /// Reads the next chunk, and writes the previous one, while one is stepped.
  bool pipeline_read = false;
  bool pipeline_write = false;
  /// Skips the first write of the states: a state that was never written reads as its initial value.
  bool fast_init = false;
  /// Share of the elements that is moved; the rest stays with the model.
  double ratio = 1;
  /// Steps with the previous step's gradients while the device computes the next ones (ZeRO-Offload's delayed parameter
  /// update).
  bool delayed_update = false;
};

/// Shards of parameters at ZeRO stage 3: "offload_param".
struct ParameterOptions {
  Place place = Place::device;
  std::string nvme_path = {};
  /// Buckets that have host memory at a time, at least 3.
  int64_t buffer_count = 5;
  /// Elements that stay in host memory although the place is nvme.
  int64_t max_in_cpu = 1'000'000'000;
  bool pin_memory = true;
};

/// Which data are moved to cheaper memory between uses. Source: Ren et al. 2021, arXiv:2101.06840 (ZeRO-Offload);
/// Rajbhandari et al. 2021, arXiv:2104.07857 (ZeRO-Infinity).
struct Options {
  OptimizerOptions optimizer;
  ParameterOptions parameters;
  aio::Options aio;

  bool uses_files() const { return optimizer.place == Place::nvme || parameters.place == Place::nvme; }
};

} // namespace trireme::offload
