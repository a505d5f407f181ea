#pragma once

#include <sys/types.h>

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

/// Makes a new folder `parent`/`name`-XXXXXX for this user only; without a parent where temporary files go. Returns its absolute path.
/// Errors: InputError with the system's reason and `next`.
std::filesystem::path make_scratch_folder(const std::string& name, std::filesystem::path parent = {},
                                          const std::string& next = "Set TMPDIR to a folder with room.");

/// A scratch folder that goes away with everything in it.
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

/// Whether `path` exists. Errors: InputError where this user may not look.
bool is_there(const std::filesystem::path& path);

/// What a failure of std::filesystem is to a person: the path, the system's reason, what to do.
InputError in_words(const std::filesystem::filesystem_error& error);

/// Makes a rename or a new entry in `folder` survive a power cut.
void sync_folder(const std::filesystem::path& folder);

/// "No space left on device (needs 12 MB, 3 MB free)" and the like, for the current errno `code`.
std::string describe_write_failure(int code, const std::filesystem::path& path, uint64_t needed_bytes);

} // namespace trireme
