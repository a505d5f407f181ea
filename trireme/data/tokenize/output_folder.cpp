#include <trireme/data/tokenize/output_folder.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/data/token_files/shard_index.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = ".unfinished.";

Descriptor open_folder(const fs::path& folder) {
  return Descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// Without the last separator.
fs::path absolute_of(const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

void check_free(const fs::path& path, bool replace) {
  if (!is_there(path)) {
    return;
  }
  if (!fs::is_directory(path)) {
    throw InputError("data", concat(path.string(), " is a file"), "Name a new folder with --out.");
  }
  if (fs::is_empty(path) || (replace && is_shard_folder(path))) {
    return;
  }
  if (is_shard_folder(path)) {
    throw InputError("data", concat(path.string(), " already has finished token shards"),
                     "Name another folder with --out, or replace it with --force.");
  }
  throw InputError("data", concat(path.string(), " has files that are no token shards"),
                   "Name a new folder with --out.");
}

} // namespace

OutputFolder::OutputFolder(const fs::path& path, bool replace) try : path_(absolute_of(path)) {
  check_free(path_, replace);
  fs::create_directories(path_.parent_path());
  remove_abandoned();
  temporary_ = path_.parent_path() / concat(path_.filename().string(), kMark, ::getpid());
  fs::remove_all(temporary_);
  fs::create_directory(temporary_);
  lock_ = open_folder(temporary_);
  ::flock(lock_.get(), LOCK_EX | LOCK_NB); // a file system without locks keeps what killed processes leave
} catch (const fs::filesystem_error& error) {
  throw in_words(error);
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) {
    fs::remove_all(temporary_, ignored);
  }
}

// Of this folder; a process that lives holds the lock of its own.
void OutputFolder::remove_abandoned() const {
  const std::string prefix = path_.filename().string() + kMark;
  std::error_code ignored;
  for (const auto& item : fs::directory_iterator(path_.parent_path(), ignored)) {
    const std::string name = item.path().filename().string();
    if (name.size() == prefix.size() || !name.starts_with(prefix) ||
        name.find_first_not_of("0123456789", prefix.size()) != std::string::npos) {
      continue;
    }
    const Descriptor folder = open_folder(item.path());
    if (folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) {
      fs::remove_all(item.path(), ignored);
    }
  }
}

void OutputFolder::commit() {
  sync_folder(temporary_);
  const bool replaces = ::access(path_.c_str(), F_OK) == 0 && !fs::is_empty(path_);
  // Exchanged, the folder has either the old or the new content at any time.
  const int failed = replaces ? ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE)
                              : ::rename(temporary_.c_str(), path_.c_str());
  if (failed != 0) {
    throw Error("data",
                concat("cannot rename ", temporary_.string(), " to ", path_.string(), ": ",
                       describe_write_failure(errno, path_, 0)),
                replaces ? "Remove the old folder and run this again." : "Name another folder with --out.");
  }
  sync_folder(path_.parent_path());
  if (replaces) { // now under the temporary name
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
  temporary_.clear();
}

} // namespace trireme::data
