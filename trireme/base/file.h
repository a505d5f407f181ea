#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace trireme {

/// The whole file. Throws InputError naming the file when it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Writes beside `path` under a temporary name, fsyncs, renames over `path` and
/// fsyncs the folder: afterwards the old or the new content is there, whole,
/// whatever happens. Throws Error with the reason (disk full: bytes needed and free).
void write_file_atomically(const std::filesystem::path& path, std::string_view content);
/// The same with a temporary name of the caller's, in the same folder.
void write_file_atomically(const std::filesystem::path& path, std::string_view content, const std::filesystem::path& temporary);

/// Makes a rename or a new entry in `folder` survive a power cut.
void sync_folder(const std::filesystem::path& folder);

/// "No space left on device (needs 12 MB, 3 MB free)" and the like, for the current errno `code`.
std::string describe_write_failure(int code, const std::filesystem::path& path, uint64_t needed_bytes);

} // namespace trireme
