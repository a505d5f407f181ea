#pragma once

#include <trireme/config/run_file.h>
#include <trireme/memory/offload/preflight.h>
#include <trireme/plan/estimate/moves.h>
#include <trireme/plan/estimate/run.h>

#include <nlohmann/json_fwd.hpp>

#include <vector>

namespace trireme::train {

/// File use of ranks [first, first + count) of a run, those of a host, by folder.
std::vector<offload::FolderUse> folder_uses(const estimate::Run& run, const std::vector<estimate::StageMoves>& moves,
                                            int64_t first, int64_t count);
/// File use of all ranks.
std::vector<offload::FolderUse> folder_uses(const estimate::Run& run, const std::vector<estimate::StageMoves>& moves);

/// True if it keeps anything in files: offload, or activations.
bool uses_files(const estimate::Run& run);

/// Refuses, before it starts, a run whose files do not fit; all its ranks are on this host. Errors: InputError with the
/// nearest configuration that does.
void check_files(const estimate::Run& run);

/// Predicts, in a few lines per disk, what this host's disks mean for a step of ranks [first, first + count). Errors:
/// InputError if a disk has too little free space.
std::vector<std::string> look_at_disks(const estimate::Run& run, int64_t first, int64_t count);

/// A disk's measurements as JSON.
nlohmann::ordered_json disk_json(const offload::Preflight& preflight);

/// The part of `trireme estimate` about moved data: tables on stdout, or added to a stage's object.
void print_offload(const estimate::Run& run, const std::vector<estimate::StageMoves>& moves);
void add_offload(nlohmann::ordered_json& stage, const estimate::StageMoves& moves);

} // namespace trireme::train
