#pragma once

#include <trireme/comm/progress.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace trireme::comm {

/// Says what a rank does, or how it ended: "rank 2 is in layer 7 (ReLU), for 12.0 s; it last did recv #4 ...". Pure.
std::string describe_rank(int rank, const PeerView& view);

/// Says in a few lines which rank blocks which: the culprits first, with what they do and their stack, then the ranks
/// that wait for them. `headline` is the first line, `from` the rank that noticed. Pure.
std::string hang_text(const std::map<int, PeerView>& ranks, int from, const std::string& headline);

/// Fills in what the kernel says of ranks on this machine that did not answer.
void look_at_silent(RollCall& roll_call, const std::string& own_place);

/// The folder for dumps: TRIREME_RUN_DIR (the launcher sets it to the run's folder), else a new private folder in the
/// temporary one.
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

/// Merges the dumps in a folder, or in the folder of a dump: hang_text() of all ranks (the printed report if some left
/// no dump), and what each rank did. Errors: InputError naming a file that is not one.
std::string describe_hang(const std::filesystem::path& path);
/// {"ranks": {"0": the dump, ...}, "report": describe_hang()}
nlohmann::json describe_hang_json(const std::filesystem::path& path);

} // namespace trireme::comm
