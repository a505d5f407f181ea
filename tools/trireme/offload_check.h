#pragma once

#include <trireme/config/run_file.h>
#include <trireme/estimate/moves.h>
#include <trireme/estimate/run.h>
#include <trireme/offload/preflight.h>

#include <nlohmann/json_fwd.hpp>

#include <vector>

namespace trireme::tools {

/// What ranks [first, first + count) of a run have in files, by folder: those of a host.
std::vector<offload::FolderUse> folder_uses(const estimate::Run& run, const std::vector<estimate::StageMoves>& moves,
                                            int64_t first, int64_t count);
/// Of all ranks.
std::vector<offload::FolderUse> folder_uses(const estimate::Run& run, const std::vector<estimate::StageMoves>& moves);

/// Whether it keeps anything in files: offload, or activations.
bool uses_files(const estimate::Run& run);

/// Refuses a run whose files do not fit, before it starts: all its ranks are on this host. Errors: InputError with the
/// nearest configuration that does.
void check_files(const estimate::Run& run);

/// What the disks of this host make of a step of ranks [first, first + count), each disk in a few lines. Errors:
/// InputError where they have no room.
std::vector<std::string> look_at_disks(const estimate::Run& run, int64_t first, int64_t count);

/// What a disk showed as lines, and for programs.
nlohmann::ordered_json disk_json(const offload::Preflight& preflight);

/// The part of `trireme estimate` about what is moved: tables on stdout, or added to a stage's object.
void print_offload(const estimate::Run& run, const std::vector<estimate::StageMoves>& moves);
void add_offload(nlohmann::ordered_json& stage, const estimate::StageMoves& moves);

} // namespace trireme::tools
