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

/// The whole file. Throws InputError naming the file when it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Makes a file that was not there and opens it (O_CREAT | O_EXCL). What has its name is removed first, a link as a
/// link: nothing that one leads to is opened or changed. Returns none, and errno, where the system refuses, also for a
/// folder of that name.
Descriptor create_new(const std::filesystem::path& path, int flags, mode_t mode = 0600);

/// Writes beside `path` under a temporary name, fsyncs, renames over `path` and
/// fsyncs the folder: `path` always has either the old or the new content.
/// A replaced file keeps its mode; a new one is private to this user unless `mode` says more (the umask
/// applies too). Throws Error with the reason (disk full: bytes needed and free).
void write_file_atomically(const std::filesystem::path& path, std::string_view content, mode_t mode = 0600);
/// The same with a temporary name from the caller, in the same folder.
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           const std::filesystem::path& temporary, mode_t mode = 0600);
/// Whether it could be written now, for what takes long before: makes and removes the temporary file. Throws as
/// write_file_atomically().
void check_writable(const std::filesystem::path& path);

/// The temporary name, beside `path`, under which this process writes what becomes `path`.
std::filesystem::path temporary_name(const std::filesystem::path& path);
/// Removes what processes have left of `path` under temporary names because they were killed. None may be writing it
/// now; where one may, leave what was written within the last `unchanged_for`. What cannot be removed stays.
void remove_unfinished(const std::filesystem::path& path, std::chrono::seconds unchanged_for = {});

/// Like mkdir -p, but new folders are private to this user (0700); existing ones do not change.
void make_private_folders(const std::filesystem::path& folder, std::error_code& error);
/// The same. Errors: std::filesystem::filesystem_error.
void make_private_folders(const std::filesystem::path& folder);

/// Makes a new private folder `parent`/`name`-XXXXXX; without a parent, in the temporary folder. Returns its absolute
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

/// Whether `path` exists. Errors: InputError if this user has no permission to look.
bool is_there(const std::filesystem::path& path);

/// Converts an error of std::filesystem for the user: the path, the system's reason, what to do.
InputError in_words(const std::filesystem::filesystem_error& error);

/// Flushes `folder`, so that a rename or a new entry survives a power failure.
void sync_folder(const std::filesystem::path& folder);

/// "No space left on device (needs 12 MB, 3 MB free)" and the like, for the current errno `code`; without the first
/// number where `needed_bytes` is 0.
std::string describe_write_failure(int code, const std::filesystem::path& path, uint64_t needed_bytes);

} // namespace trireme
