#pragma once

#include <trireme/memory/offload/options.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/shards/bucket/flat_layout.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::estimate {

/// Directions of offload over the links of a host.
enum class Way { to_host, to_device, from_files, to_files };
inline constexpr Way kWays[] = {Way::to_host, Way::to_device, Way::from_files, Way::to_files};

/// "to_host", "to_device", "from_files", "to_files".
const char* way_name(Way way);

/// A GPU, as errors name it before ranks start.
inline constexpr const char* kDevice = "a GPU";

/// Name of the moves of units of stage 3 that layers are about to use.
inline constexpr const char* kUnits = "units";
/// Name of masters and states in files, which the optimizer reads and writes.
inline constexpr const char* kMovedStates = "masters and states";
/// Name of activations that move between a GPU and its host.
inline constexpr const char* kActivations = "activations";

/// Buffers in memory for buckets in files; as many as the largest buckets (offload::DiskStore).
struct FileBuffers {
  int64_t count = 0;
  int64_t bytes = 0;
  bool hold_all = true;     ///< they hold all buckets: what was written is still in memory
  int64_t pinned_bytes = 0; ///< of their pinned blocks, powers of two
};

/// The offloaded part of a rank's flat buffer. In bytes, unless named elements. In files, each array's part of a bucket
/// is padded to blocks of 4096 bytes.
struct Elsewhere {
  /// Elements whose masters and states are offloaded. With a ratio on a GPU: whole buckets from the front whose middle
  /// lies within the share.
  int64_t elements = 0;
  int64_t state_bytes = 0;
  /// Also for fp32 parameters on a GPU: the host steps a copy.
  int64_t master_bytes = 0;
  int64_t state_file_bytes = 0;
  int64_t largest_elements = 0;
  int64_t state_buckets = 0;
  FileBuffers state_buffers = {};
  /// Sizes of the pinned allocations on the host, in the order in which they are made.
  std::vector<int64_t> state_pieces = {};
  std::vector<int64_t> gradient_pieces = {};
  std::vector<int64_t> parameter_pieces = {};
  /// Padding of the pinned blocks of parameters that max_in_cpu keeps out of files; each has its own block.
  int64_t beside_kept_parameters = 0;

  /// Elements of sharded parameters, and how many of them are in files, beyond max_in_cpu.
  int64_t parameters = 0;
  int64_t parameters_in_files = 0;
  int64_t parameter_file_bytes = 0;
  int64_t stepped_file_bytes = 0; ///< of trained ones
  FileBuffers parameter_buffers = {};
  /// Elements and buckets of them that the GPU steps because it has their states: they are moved there and back. And
  /// the elements that are there at a time.
  int64_t stepped_on_device = 0;
  int64_t buckets_stepped_on_device = 0;
  int64_t most_on_device = 0;

  int64_t gradient_file_bytes = 0;
  FileBuffers gradient_buffers = {};
};
Elsewhere elsewhere_of(const Run& run, const bucket::FlatLayout& layout);
/// The same for several flat buffers, which share the buffers of their files; for frozen ones parameters only.
Elsewhere elsewhere_of(const Run& run, const std::vector<const bucket::FlatLayout*>& trained,
                       const std::vector<const bucket::FlatLayout*>& frozen);

/// Bytes that a rank of a pipeline stage has on its GPU's host and in files, and moves per step. Empty without
/// offload and without moved activations.
struct StageMoves {
  int64_t stage = 0;
  /// In host memory, beside estimate::Category::data and baseline of a rank on a GPU. Empty for ranks on the CPU.
  std::vector<Item> on_host;
  /// A model in one piece is built on the host in fp32 before it moves to the GPU. A layer of a list is cast and moves,
  /// with Run::builds_on_host() into the flat buffer after all layers are built; a unit of stage 3 is sharded at once.
  int64_t host_at_start = 0;
  /// The part of on_host that "auto" may leave on the GPU: activations, and buffers of their files.
  int64_t may_stay_on_device = 0;
  std::vector<Item> in_files;
  /// In files temporarily: modules as built, until their parameters have their own files and before there are states;
  /// activations from forward to backward.
  std::vector<Item> in_files_at_times;
  /// Bytes per step; `axis` is the direction. An upper bound of reads: a bucket that is still in memory is not read, so
  /// with at most as many buckets as buffers none is, and the units used last are not. The first step also reads and
  /// writes the states once more; parameters are also written when built.
  std::vector<Item> moved;
  /// Bytes written to files before the first step: initial states (none with fast_init), and parameters as built.
  int64_t initial_states = 0;
  int64_t built_parameters = 0;

  int64_t host_bytes() const;
  /// The larger of host_bytes() and host_at_start.
  int64_t host_peak() const { return std::max(host_bytes(), host_at_start); }
  /// The same two without what "auto" may leave on the GPU.
  int64_t sure_host_bytes() const { return host_bytes() - may_stay_on_device; }
  int64_t sure_host_peak() const { return std::max(sure_host_bytes(), host_at_start); }
  int64_t file_bytes() const;
  int64_t gradient_file_bytes() const;
  int64_t building_bytes() const;
  int64_t activation_bytes() const;
  int64_t activations_on_host() const;
  /// To files per step; as many are read back.
  int64_t moved_activations() const;
  /// Peak in files: in_files and activations; or, before masters and states have files, gradients and two copies of the
  /// parameters.
  int64_t disk_bytes() const;
  int64_t bytes(Way way) const;
};

/// One for each pipeline stage. Source: Ren et al. 2021, arXiv:2101.06840; Rajbhandari et al. 2021, arXiv:2104.07857.
std::vector<StageMoves> moves_of(const Run& run);
std::vector<StageMoves> moves_of(const StageLayouts& stages);

} // namespace trireme::estimate
