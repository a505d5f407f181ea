#pragma once

#include <trireme/memory/aio/probe.h>
#include <trireme/memory/offload/options.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::offload {

/// Use of a folder by all ranks of one host: bytes kept, and bytes transferred per step.
struct FolderUse {
  std::filesystem::path folder;
  int64_t ranks = 0;
  /// Masters and optimizer states, including gradients; parameters.
  int64_t state_bytes = 0;
  int64_t parameter_bytes = 0;
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  /// Written before the first step.
  int64_t start_bytes = 0;
  /// Part of state_bytes: gradients, which get their files when parameters do.
  int64_t gradient_bytes = 0;
  /// Modules under construction, until their parameters have their own files: before there are masters and states.
  int64_t building_bytes = 0;
  /// Kept from forward to backward.
  int64_t activation_bytes = 0;
  /// Part of read_bytes and write_bytes: masters and states, which are transferred during the optimizer's pass. The
  /// rest is transferred during forward and backward.
  int64_t state_read_bytes = 0;
  int64_t state_write_bytes = 0;
  /// While training: the bytes of memory that the ranks would need if nothing were in files.
  int64_t bytes() const { return state_bytes + parameter_bytes + activation_bytes; }
  /// While the model is moved to its files.
  int64_t bytes_at_start() const { return gradient_bytes + parameter_bytes + building_bytes; }
  int64_t most_bytes() const { return std::max(bytes(), bytes_at_start()); }
};

/// One rank's files of one kind: bytes kept, and bytes transferred per step.
struct KindUse {
  int64_t bytes = 0;
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  int64_t start_bytes = 0;      ///< written before the first step
  int64_t gradient_bytes = 0;   ///< part of `bytes`
  int64_t building_bytes = 0;   ///< besides them, at the start
  int64_t state_read_bytes = 0; ///< part of read_bytes: masters and states
  int64_t state_write_bytes = 0;
};

/// One rank's activations, and the folder of "activation_checkpointing".
struct ActivationUse {
  std::string folder = {};
  int64_t bytes = 0;
  int64_t moved_bytes = 0; ///< per step, in each direction
};

/// Adds the use of `ranks` equal ranks of the host to the folders that `options` name for states and parameters, and to
/// that of activations; makes entries as needed.
void add_use(std::vector<FolderUse>& folders, const Options& options, const KindUse& states, const KindUse& parameters,
             int64_t ranks, const ActivationUse& activations = {});

/// The folder itself or, if it does not exist yet, its nearest existing parent. Errors: InputError if that is not a
/// folder or is not writable.
std::filesystem::path existing_folder(const std::filesystem::path& folder);

/// Free bytes of the folder, and of the host's memory beyond what the ranks need anyway; absent: unknown. Ranks on a
/// device may keep a part of their states there ("ratio").
struct Room {
  int64_t free_bytes = 0;
  std::optional<int64_t> memory_bytes = std::nullopt;
  bool on_device = false;
  /// While the model is moved to its files; absent: the same as free_bytes.
  std::optional<int64_t> free_at_start = std::nullopt;
};

/// Why the files do not fit, and the nearest configuration that does: activations without files, fewer states in files
/// ("ratio"), parameters or everything in memory, if its size is known. Empty: they fit.
struct Refusal {
  std::string what;
  std::string next;
};
Refusal refusal(const FolderUse& use, const Options& options, const Room& room);

/// The disk's measurements, and what follows for a step, one line each.
///
/// Reads and writes of a step take bytes / bandwidth each, in sequence: no step is shorter than their sum. Without
/// pipeline_read and pipeline_write, transfers of masters and states are added to the time of computation.
struct Preflight {
  FolderUse use;
  aio::Probe disk;
  double read_seconds = 0;
  double write_seconds = 0;
  /// The part of both that is added to the computation.
  double waited_seconds = 0;
  std::vector<std::string> lines;
};
Preflight judge(const FolderUse& use, const Options& options, const aio::Probe& disk);

/// Bytes of the file that measures a folder: enough to average over many requests, and no more than fits.
int64_t probe_bytes(const FolderUse& use, const Options& options, int64_t free_bytes);

/// Checks that every folder has room, counting the other folders on its disk. Errors: InputError with refusal(),
/// and as existing_folder().
void check_room(const std::vector<FolderUse>& folders, const Options& options, std::optional<int64_t> memory_bytes,
                bool on_device);

/// Measures and judges every folder. Takes about as long as writing probe_bytes() twice and reading them once. Errors:
/// as aio::probe().
std::vector<Preflight> preflight(const std::vector<FolderUse>& folders, const Options& options);

} // namespace trireme::offload
