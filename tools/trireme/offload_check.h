#pragma once

#include <trireme/config/run_file.h>
#include <trireme/estimate/moves.h>
#include <trireme/estimate/run.h>
#include <trireme/offload/preflight.h>

#include <nlohmann/json_fwd.hpp>

#include <vector>

namespace trireme::tools {

/// What the ranks of a run have in files, by folder. All of them are on this host.
std::vector<offload::FolderUse> folder_uses(const estimate::Run& run, const std::vector<estimate::StageMoves>& moves);

/// Refuses a run whose files do not fit, before it starts. Errors: InputError with the nearest configuration that does.
void check_files(const estimate::Run& run);

/// What a disk showed as lines, and for programs.
nlohmann::ordered_json disk_json(const offload::Preflight& preflight);

/// The part of `trireme estimate` about what is moved: tables on stdout, or added to a stage's object.
void print_offload(const estimate::Run& run, const std::vector<estimate::StageMoves>& moves);
void add_offload(nlohmann::ordered_json& stage, const estimate::StageMoves& moves);

} // namespace trireme::tools
