#pragma once

#include "commands.h"

#include <trireme/comm/group.h>

#include <filesystem>
#include <optional>
#include <string>

namespace trireme::tools {

/// Key in a checkpoint's client state for the job that saved it, restarts included.
inline constexpr const char* kJob = "job";

/// The checkpoint, or the folder of them, that a training goes on from.
struct RunStart {
  std::filesystem::path from;
  bool elsewhere; ///< not in the run folder
};

/// The newest checkpoint in `folder` if the job `job` saved it: not one that lay there before. Collective.
std::optional<std::filesystem::path> saved_by(const std::string& job, const std::filesystem::path& folder,
                                              const comm::Group& group);

/// Where `trireme train` begins: with `--resume` at what it names, and a restart of the job `job` at that job's last
/// checkpoint, or where the job began. nullopt: at the first step. Collective.
std::optional<RunStart> find_start(const TrainCommand& command, const std::string& job, const comm::Group& group);

} // namespace trireme::tools
