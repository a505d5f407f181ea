#pragma once

#include <trireme/comm/progress.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace trireme::comm {

/// Describes a rank's activity or end: "rank 2 is in layer 7 (ReLU), for 12.0 s; it last did recv #4 ...". Pure.
std::string describe_rank(int rank, const PeerView& view);

/// Describes which rank blocks which: the culprits first, with activity and stack, then the ranks that wait for them.
/// `headline` is the first line, `from` the rank that noticed. Pure.
std::string hang_text(const std::map<int, PeerView>& ranks, int from, const std::string& headline);

/// Adds the kernel's state of ranks on this machine that did not answer.
void look_at_silent(RollCall& roll_call, const std::string& own_place);

/// The folder for dumps: TRIREME_RUN_DIR (the run's folder, set by the launcher), else a new private temporary
/// folder.
std::filesystem::path hang_folder();

/// Writes this rank's state to `folder`/hang-rank<r>.json: progress notes, groups, the last 1024
/// operations, the stack of every thread, memory, and the report of rank `from`. Errors: Error when it cannot be
/// written.
void write_hang_dump(const std::filesystem::path& folder, int rank, int size, int from, const std::string& report,
                     const PeerView& own);

/// Removes the dumps of an earlier hang from `folder`.
void remove_hang_dumps(const std::filesystem::path& folder);

/// The newest dump in the folder `path`, or in the folder of the dump `path`; nullopt if `path` is neither.
std::optional<std::filesystem::path> newest_hang_dump(const std::filesystem::path& path);

/// Merges the dumps in a folder, or in the folder of a dump: hang_text() of all ranks (the printed report if dumps are
/// missing), and each rank's activity. Errors: InputError naming a file that is not a dump.
std::string describe_hang(const std::filesystem::path& path);
/// {"ranks": {"0": the dump, ...}, "report": describe_hang()}
nlohmann::json describe_hang_json(const std::filesystem::path& path);

} // namespace trireme::comm
