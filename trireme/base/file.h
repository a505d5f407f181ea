#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace trireme {

class InputError;

/// The whole file. Throws InputError naming the file when it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Writes beside `path` under a temporary name, fsyncs, renames over `path` and
/// fsyncs the folder: afterwards the old or the new content is there, whole,
/// whatever happens. A file that is replaced keeps its mode; a new one is for this user only unless `mode` says more (the umask
/// counts too). Throws Error with the reason (disk full: bytes needed and free).
void write_file_atomically(const std::filesystem::path& path, std::string_view content, mode_t mode = 0600);
/// The same with a temporary name of the caller's, in the same folder.
void write_file_atomically(const std::filesystem::path& path, std::string_view content, const std::filesystem::path& temporary, mode_t mode = 0600);

/// As mkdir -p, but what is made here is for this user only (0700); folders that are there stay as they are.
void make_private_folders(const std::filesystem::path& folder, std::error_code& error);
/// The same. Errors: std::filesystem::filesystem_error.
void make_private_folders(const std::filesystem::path& folder);

/// What a failure of std::filesystem is to a person: the path, the system's reason, what to do.
InputError in_words(const std::filesystem::filesystem_error& error);

/// Makes a rename or a new entry in `folder` survive a power cut.
void sync_folder(const std::filesystem::path& folder);

/// "No space left on device (needs 12 MB, 3 MB free)" and the like, for the current errno `code`.
std::string describe_write_failure(int code, const std::filesystem::path& path, uint64_t needed_bytes);

} // namespace trireme
