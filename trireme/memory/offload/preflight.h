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

/// What the ranks of one host keep in a folder, and move through it in a step: all of them together.
struct FolderUse {
  std::filesystem::path folder;
  int64_t ranks = 0;
  /// Masters and optimizer states, gradients, and parameters.
  int64_t state_bytes = 0;
  int64_t parameter_bytes = 0;
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  /// Before the first step.
  int64_t start_bytes = 0;
  /// Of state_bytes: gradients, which have their files as soon as parameters do.
  int64_t gradient_bytes = 0;
  /// Modules as they are built, until their parameters are in files of their own: before there are masters and states.
  int64_t building_bytes = 0;
  /// From forward to backward.
  int64_t activation_bytes = 0;
  /// Of read_bytes and write_bytes: masters and states, which move beside the optimizer's pass. The rest moves beside
  /// forward and backward.
  int64_t state_read_bytes = 0;
  int64_t state_write_bytes = 0;
  /// While it trains: bytes of the ranks' memory that would be needed instead, if nothing were in files.
  int64_t bytes() const {
    return state_bytes + parameter_bytes + activation_bytes;
  }
  /// While the model moves to its place.
  int64_t bytes_at_start() const {
    return gradient_bytes + parameter_bytes + building_bytes;
  }
  int64_t most_bytes() const {
    return std::max(bytes(), bytes_at_start());
  }
};

/// What a rank has in files of one kind, and moves through them in a step.
struct KindUse {
  int64_t bytes = 0;
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  int64_t start_bytes = 0;      ///< written before the first step
  int64_t gradient_bytes = 0;   ///< of `bytes`
  int64_t building_bytes = 0;   ///< beside them, at the start
  int64_t state_read_bytes = 0; ///< of read_bytes: masters and states
  int64_t state_write_bytes = 0;
};

/// What a rank has of activations, and the folder of "activation_checkpointing".
struct ActivationUse {
  std::string folder = {};
  int64_t bytes = 0;
  int64_t moved_bytes = 0; ///< in a step, each way
};

/// Adds what `ranks` ranks of the host have, each the same, to the folders that `options` name for their states and
/// their parameters, and to that of activations, or begins one.
void add_use(std::vector<FolderUse>& folders, const Options& options, const KindUse& states, const KindUse& parameters,
             int64_t ranks, const ActivationUse& activations = {});

/// The folder, or of one that is to be made the nearest above it that is there. Errors: InputError where it is no
/// folder, or may not be written to.
std::filesystem::path existing_folder(const std::filesystem::path& folder);

/// What there is room for: in the folder, and in the memory of the host beside what the ranks need there anyway;
/// absent: nobody knows. A rank on a device may leave a part of its states there ("ratio").
struct Room {
  int64_t free_bytes = 0;
  std::optional<int64_t> memory_bytes = std::nullopt;
  bool on_device = false;
  /// While the model moves to its place; absent: the same as free_bytes.
  std::optional<int64_t> free_at_start = std::nullopt;
};

/// Why the files do not fit, and the nearest configuration that does: activations without files, fewer of the states in
/// files ("ratio"), parameters or all of it in memory, if that is known. Empty: they fit.
struct Refusal {
  std::string what;
  std::string next;
};
Refusal refusal(const FolderUse& use, const Options& options, const Room& room);

/// What the disk showed, and what a step makes of it: a line each.
///
/// Reads and writes of a step take bytes / bandwidth, one after the other: no step is shorter than both together.
/// Masters and states that are not read ahead and written behind (pipeline_read, pipeline_write) are waited for, beside
/// whatever the step computes.
struct Preflight {
  FolderUse use;
  aio::Probe disk;
  double read_seconds = 0;
  double write_seconds = 0;
  /// Of both: what is waited for.
  double waited_seconds = 0;
  std::vector<std::string> lines;
};
Preflight judge(const FolderUse& use, const Options& options, const aio::Probe& disk);

/// Bytes of the file with which a folder is measured: enough that a few requests do not decide, and no more than it has
/// room for.
int64_t probe_bytes(const FolderUse& use, const Options& options, int64_t free_bytes);

/// Of every folder: whether there is room, now and beside the other folders of its disk. Errors: InputError with
/// refusal(), and as existing_folder().
void check_room(const std::vector<FolderUse>& folders, const Options& options, std::optional<int64_t> memory_bytes,
                bool on_device);

/// Of every folder: measures and judges. Takes about as long as writing probe_bytes() twice and reading them once.
/// Errors: as aio::probe().
std::vector<Preflight> preflight(const std::vector<FolderUse>& folders, const Options& options);

} // namespace trireme::offload
