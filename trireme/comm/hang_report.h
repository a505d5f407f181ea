#pragma once

#include <trireme/comm/progress.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace trireme::comm {

/// Tells in a few lines who holds up whom: the culprits first, with what they do and their stack, then who waits for them.
/// `headline` is the first line, `from` the rank that noticed. Pure.
std::string hang_text(const std::map<int, PeerView>& ranks, int from, const std::string& headline);

/// Fills in what the kernel says of ranks on this machine that did not answer.
void look_at_silent(RollCall& roll_call, const std::string& own_place);

/// Where dumps go: TRIREME_RUN_DIR (the launcher sets it to the run's folder), else a new folder, for this user only, in the temporary one.
std::filesystem::path hang_folder();

/// Writes what this rank knows of itself to `folder`/hang-rank<r>.json: progress notes, groups, the last 1024
/// operations, the stack of every thread, memory, and the report as the rank `from` made it. Errors: Error when it cannot be written.
void write_hang_dump(const std::filesystem::path& folder, int rank, int size, int from, const std::string& report,
                     const PeerView& own);

/// Removes the dumps of an earlier hang from `folder`.
void remove_hang_dumps(const std::filesystem::path& folder);

/// The newest dump in a folder, or in that of a dump; nullopt where `path` is neither.
std::optional<std::filesystem::path> newest_hang_dump(const std::filesystem::path& path);

/// Merges the dumps in a folder, or in that of a dump: hang_text() of all ranks, or where some left none the report as it was printed, and
/// what each rank did.
/// Errors: InputError naming a file that is not one.
std::string describe_hang(const std::filesystem::path& path);
/// {"ranks": {"0": the dump, ...}, "report": describe_hang()}
nlohmann::json describe_hang_json(const std::filesystem::path& path);

} // namespace trireme::comm
