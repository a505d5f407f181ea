#pragma once

#include <trireme/memory/offload/options.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/shards/bucket/flat_layout.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::estimate {

/// The links of a host over which offload moves something.
enum class Way { to_host, to_device, from_files, to_files };
inline constexpr Way kWays[] = {Way::to_host, Way::to_device, Way::from_files, Way::to_files};

/// "to_host", "to_device", "from_files", "to_files".
const char* way_name(Way way);

/// A GPU, as errors name it before ranks start.
inline constexpr const char* kDevice = "a GPU";

/// Name of the moves of units of stage 3 that layers are about to use.
inline constexpr const char* kUnits = "units";
/// Of masters and states in files, which the optimizer reads and writes.
inline constexpr const char* kMovedStates = "masters and states";
/// Of activations between a device and its host.
inline constexpr const char* kActivations = "activations";

/// Buckets that have memory while files hold the rest: the largest ones do (offload::DiskStore).
struct FileBuffers {
  int64_t count = 0;
  int64_t bytes = 0;
  bool hold_all = true;     ///< there is no rest: what was written is in memory still
  int64_t pinned_bytes = 0; ///< of page-locked blocks for them, powers of two
};

/// What a rank has of a flat buffer elsewhere than where the model is. Bytes, unless they are called elements. In files
/// each array's part of a bucket fills whole blocks of 4096 bytes.
struct Elsewhere {
  /// Elements whose masters and states are elsewhere. Of a device's, with a ratio, whole buckets from the front: those
  /// whose middle lies within the share.
  int64_t elements = 0;
  int64_t state_bytes = 0;
  /// Of parameters in fp32 on a device too: the host has a copy to step.
  int64_t master_bytes = 0;
  int64_t state_file_bytes = 0;
  int64_t largest_elements = 0;
  int64_t state_buckets = 0;
  FileBuffers state_buffers = {};
  /// Bytes of the pieces that a device's pinned memory is cut into, in the order in which they are taken: of what is on
  /// the host.
  std::vector<int64_t> state_pieces = {};
  std::vector<int64_t> gradient_pieces = {};
  std::vector<int64_t> parameter_pieces = {};
  /// What pinned blocks have beyond parameters that max_in_cpu keeps out of files: each has one of its own.
  int64_t beside_kept_parameters = 0;

  /// Elements of sharded parameters, and those of them that are in files, beyond max_in_cpu.
  int64_t parameters = 0;
  int64_t parameters_in_files = 0;
  int64_t parameter_file_bytes = 0;
  FileBuffers parameter_buffers = {};
  /// Elements and buckets of them that a device steps, because it has their states: they come and go for that. And the
  /// elements of those that are there at a time.
  int64_t stepped_on_device = 0;
  int64_t buckets_stepped_on_device = 0;
  int64_t most_on_device = 0;

  int64_t gradient_file_bytes = 0;
  FileBuffers gradient_buffers = {};
};
Elsewhere elsewhere_of(const Run& run, const bucket::FlatLayout& layout);
/// The same of several flat buffers, which share their files' buffers; of frozen ones parameters only.
Elsewhere elsewhere_of(const Run& run, const std::vector<const bucket::FlatLayout*>& trained,
                       const std::vector<const bucket::FlatLayout*>& frozen);

/// What a rank of a pipeline stage has on the host of its device and in files, and what it moves in a step. Empty
/// without offload and activations that move.
struct StageMoves {
  int64_t stage = 0;
  /// In the host's memory beside what a rank on a device has there anyway (estimate::Category::data and baseline).
  /// Empty for ranks on the CPU, whose memory this is.
  std::vector<Item> on_host;
  /// A model in one piece is built there in fp32, whole, before it moves to the device; a layer of a list moves as soon
  /// as it is built, and a unit of stage 3 is sharded.
  int64_t host_at_start = 0;
  /// Of on_host: activations, and buffers of their files, that "auto" may leave on the device.
  int64_t may_stay_on_device = 0;
  std::vector<Item> in_files;
  /// In files for a part of the time: modules as they are built, until their parameters are in files of their own,
  /// before there are states; activations from forward to backward.
  std::vector<Item> in_files_at_times;
  /// In one step, `axis` being the way. A bucket that is in memory still is not read: where there are no more buckets
  /// than buffers none ever is, and of units those used last are left out, so that less is read than is said here. The
  /// first step also reads and writes the states once more, and parameters are written when they are built.
  std::vector<Item> moved;
  /// Bytes that are written to files before the first step: initial states (fast_init leaves them out), and parameters
  /// as they are built.
  int64_t initial_states = 0;
  int64_t built_parameters = 0;

  int64_t host_bytes() const;
  /// The larger of it and of host_at_start.
  int64_t host_peak() const {
    return std::max(host_bytes(), host_at_start);
  }
  /// The same two without what "auto" may leave on the device.
  int64_t sure_host_bytes() const {
    return host_bytes() - may_stay_on_device;
  }
  int64_t sure_host_peak() const {
    return std::max(sure_host_bytes(), host_at_start);
  }
  int64_t file_bytes() const;
  int64_t gradient_file_bytes() const;
  int64_t building_bytes() const;
  int64_t activation_bytes() const;
  int64_t activations_on_host() const;
  /// To files in a step; as many come back.
  int64_t moved_activations() const;
  /// The most that lies in files at a time: all of in_files and activations, or, before masters and states have their
  /// files, parameters twice and gradients.
  int64_t disk_bytes() const;
  int64_t bytes(Way way) const;
};

/// One for each pipeline stage. Source: Ren et al. 2021, arXiv:2101.06840; Rajbhandari et al. 2021, arXiv:2104.07857.
std::vector<StageMoves> moves_of(const Run& run);
std::vector<StageMoves> moves_of(const StageLayouts& stages);

} // namespace trireme::estimate
