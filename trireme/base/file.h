#pragma once

#include <trireme/base/descriptor.h>

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace trireme {

class InputError;

/// The file's content. Throws InputError naming the file when it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Creates and opens a new file (O_CREAT | O_EXCL). An existing file or link of that name is removed first; the target
/// of a link is neither opened nor changed. If the system refuses, or the name is a folder's, returns none and sets
/// errno.
Descriptor create_new(const std::filesystem::path& path, int flags, mode_t mode = 0600);

/// Writes beside `path` under a temporary name, fsyncs, renames over `path` and
/// fsyncs the folder: `path` always has either the old or the new content.
/// A replaced file keeps its mode; a new one is private to this user unless `mode` says more (the umask
/// applies too). Throws Error with the reason (disk full: bytes needed and free).
void write_file_atomically(const std::filesystem::path& path, std::string_view content, mode_t mode = 0600);
/// The same with a temporary name from the caller, in the same folder.
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           const std::filesystem::path& temporary, mode_t mode = 0600);
/// Checks before long work that `path` can be written: creates and removes the temporary file. Throws as
/// write_file_atomically().
void check_writable(const std::filesystem::path& path);

/// The temporary name, beside `path`, that this process writes before it renames the file to `path`.
std::filesystem::path temporary_name(const std::filesystem::path& path);
/// Removes temporary files of `path` that killed processes left. No process may be writing `path` now; if one may be,
/// files changed within the last `unchanged_for` stay. Files that cannot be removed stay.
void remove_unfinished(const std::filesystem::path& path, std::chrono::seconds unchanged_for = {});

/// Like mkdir -p, but new folders are private to this user (0700); existing ones do not change.
void make_private_folders(const std::filesystem::path& folder, std::error_code& error);
/// The same. Errors: std::filesystem::filesystem_error.
void make_private_folders(const std::filesystem::path& folder);

/// Creates a private folder `parent`/`name`-XXXXXX; without a parent, in the temporary folder. Returns its absolute
/// path. Errors: InputError with the system's reason and `next`.
std::filesystem::path make_scratch_folder(const std::string& name, std::filesystem::path parent = {},
                                          const std::string& next = "Set TMPDIR to a folder with room.");

/// A temporary folder; the destructor removes it with its content.
class ScratchFolder {
 public:
  explicit ScratchFolder(std::filesystem::path made) : path(std::move(made)) {}
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path path;
};

/// True if `path` exists. Errors: InputError if this user has no permission to look.
bool is_there(const std::filesystem::path& path);

/// Converts an error of std::filesystem for the user: the path, the system's reason, what to do.
InputError in_words(const std::filesystem::filesystem_error& error);

/// Flushes `folder`, so that a rename or a new entry survives a power failure.
void sync_folder(const std::filesystem::path& folder);

/// Whether `code`, an errno, says that a disk, a quota or the limit on a file's size is used up.
bool is_disk_full(int code);

/// Text for `code`, the current errno, such as "No space left on device (needs 12 MB, 3 MB free)". With `needed_bytes`
/// 0 the first number is left out.
std::string describe_write_failure(int code, const std::filesystem::path& path, uint64_t needed_bytes);

} // namespace trireme
