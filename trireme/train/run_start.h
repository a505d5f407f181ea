#pragma once

#include <trireme/train/commands.h>

#include <trireme/comm/group.h>
#include <trireme/config/run_file.h>
#include <trireme/engine/engine.h>

#include <filesystem>
#include <optional>
#include <string>

namespace trireme::train {

/// Key in a checkpoint's client state for the job that saved it, restarts included.
inline constexpr const char* kJob = "job";

/// The checkpoint, or the folder of checkpoints, that a training continues from.
struct RunStart {
  std::filesystem::path from;
  bool elsewhere; ///< not in the run folder
};

/// The newest checkpoint in `folder` if `job` saved it, not an earlier one. Collective.
std::optional<std::filesystem::path> saved_by(const std::string& job, const std::filesystem::path& folder,
                                              const comm::Group& group);

/// The start of `trireme train`: with `--resume` the named checkpoint; for a restart of `job` that job's last
/// checkpoint, or where the job began. nullopt: the first step. Collective.
std::optional<RunStart> find_start(const TrainCommand& command, const std::string& job, const comm::Group& group);

/// Checks that the weights which a run begins with are there, if it has no checkpoint in spite of `--resume`.
/// Collective. Errors: InputError.
void check_first_weights(const config::RunConfig& run, const comm::Group& group);

/// Loads a checkpoint, or the newest in a folder of them, into the run's engine. False: there is none. Collective.
/// Another data.pack is a line of the log. Errors: as Engine::load_checkpoint(); if the samples are others, with the
/// keys of "data" that have changed.
bool load_checkpoint(engine::Engine& engine, const config::RunConfig& run, const std::filesystem::path& from,
                     const comm::Group& group);

/// Checks that adapters count as much as in the checkpoint whose values the run takes over: shapes tell other ranks and
/// targets apart, but not another alpha. `from`: a checkpoint, or the folder of them. Collective. Errors: InputError.
void check_alpha(const config::RunConfig& run, const std::filesystem::path& from, const comm::Group& group);

/// Adds a note to `run` if its adapter names another base model than it begins with and has no sample of it: PEFT's
/// have none. Where there is a sample, the model's values were compared with it when the adapter was read. Errors:
/// InputError for an adapter that cannot be read.
void note_other_base(config::RunConfig& run);

} // namespace trireme::train
