#include <trireme/memory/offload/rank_folder.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace trireme::offload {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNext = "Name another folder with \"nvme_path\".";

/// The process that holds the lock; 0: the kernel does not tell, e.g. in another PID namespace. A line of /proc/locks
/// is "1: FLOCK  ADVISORY  WRITE 12345 fd:00:6789 0 EOF".
int64_t holder_of(const struct stat& folder) {
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, write, place;
    int64_t pid = 0;
    unsigned major = 0, minor = 0;
    unsigned long inode = 0;
    if (words >> number >> kind >> advisory >> write >> pid >> place && kind == "FLOCK" &&
        std::sscanf(place.c_str(), "%x:%x:%lu", &major, &minor, &inode) == 3 && inode == folder.st_ino &&
        makedev(major, minor) == folder.st_dev) {
      return pid;
    }
  }
  return 0;
}

[[noreturn]] void refuse_used(const fs::path& path, const struct stat& folder) {
  const int64_t pid = holder_of(folder);
  if (pid == ::getpid()) {
    throw InputError("offload", concat(path.string(), " holds the offloaded files of another engine of this process"),
                     "Destroy that engine first, or give each its own \"nvme_path\".");
  }
  throw InputError("offload",
                   concat(path.string(), " holds the offloaded files of another job",
                          pid > 0 ? concat(" (process ", pid, ")") : "", " that still runs"),
                   "Give each job its own \"nvme_path\", or end the other job.");
}

// Kinds of files, as make_file() names them.
constexpr std::string_view kKinds[] = {"optimizer_states", "parameters", "gradients", "modules_as_they_are_built"};

bool is_name_of_ours(std::string_view name) {
  const size_t dot = std::min(name.find('.'), name.size());
  const std::string_view number = name.substr(std::min(dot + 1, name.size()));
  return std::find(std::begin(kKinds), std::end(kKinds), name.substr(0, dot)) != std::end(kKinds) && !number.empty() &&
         number.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_the_same(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

bool is_still_there(int parent, const std::string& name, const struct stat& locked) {
  struct stat now{};
  return ::fstatat(parent, name.c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 && is_the_same(now, locked);
}

// Removes files of an earlier process: this user's regular files with our names. Nothing else is touched, and no link
// is followed.
void remove_files_of_ours(int folder) {
  DIR* const entries = ::fdopendir(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (entries == nullptr) {
    return;
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(entries)) {
    struct stat found{};
    if (is_name_of_ours(entry->d_name) && ::fstatat(folder, entry->d_name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(found.st_mode) && found.st_uid == ::geteuid()) {
      names.emplace_back(entry->d_name);
    }
  }
  ::closedir(entries);
  for (const std::string& name : names) {
    ::unlinkat(folder, name.c_str(), 0);
  }
}

// Refuses what exists at the folder's path and is not ours.
[[noreturn]] void refuse_strange(const fs::path& path, const std::string& what) {
  throw InputError("offload", concat(path.string(), ' ', what, ", so no offloaded files are made or removed there"),
                   "Move it, or name another folder with \"nvme_path\".");
}

void check_is_ours(const fs::path& path, const struct stat& folder) {
  if (folder.st_uid != ::geteuid()) {
    refuse_strange(path, concat("belongs to another user (", folder.st_uid, ")"));
  }
  if ((folder.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    refuse_strange(path, "may be written to by other users");
  }
}

} // namespace

std::shared_ptr<RankFolder> RankFolder::open(const fs::path& parent, int rank, const std::string& name) {
  if (parent.empty()) {
    throw InputError("offload", "\"device\": \"nvme\" without \"nvme_path\"", "Name a folder on the disk.");
  }
  const std::string own = concat(name, ".rank", rank);
  const fs::path path = fs::absolute(parent) / own;
  const auto fail = [&](const char* what, int code) {
    throw InputError("offload",
                     concat("cannot ", what, ' ', path.string(), ": ", describe_write_failure(code, parent / ".", 0)),
                     kNext);
  };
  std::error_code error;
  make_private_folders(path.parent_path(), error);
  if (error) {
    fail("make the folder", error.value());
  }
  // Works by descriptor from here on: nobody can replace a checked folder by another one or a link.
  Descriptor above(::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!above) {
    fail("open the folder of", errno);
  }
  // Repeats if the last user removed the folder between openat() and flock().
  for (;;) {
    const bool is_made_here = ::mkdirat(above.get(), own.c_str(), 0700) == 0;
    if (!is_made_here && errno != EEXIST) {
      fail("make the folder", errno);
    }
    Descriptor lock(::openat(above.get(), own.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!lock && errno == ENOENT) {
      continue;
    }
    if (!lock && (errno == ENOTDIR || errno == ELOOP)) { // for a link the system may return either
      struct stat found{};
      const bool is_link =
          ::fstatat(above.get(), own.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode);
      refuse_strange(path, is_link ? "is a symbolic link" : "is not a folder");
    }
    struct stat locked{};
    if (!lock || ::fstat(lock.get(), &locked) != 0) {
      fail("open", errno);
    }
    if (!is_made_here) { // some file systems give every file one owner and mode
      check_is_ours(path, locked);
    }
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        refuse_used(path, locked);
      }
      log::warning("offload: the file system of ", path.string(), " has no locks (", std::strerror(errno),
                   "): make sure that no other job uses this \"nvme_path\"");
    }
    if (!is_still_there(above.get(), own, locked)) {
      continue;
    }
    remove_files_of_ours(lock.get());
    return std::shared_ptr<RankFolder>(new RankFolder(path, std::move(above), std::move(lock)));
  }
}

// Runs while the folder is locked. Files of others stay, and so does the folder then.
RankFolder::~RankFolder() {
  remove_files_of_ours(lock_.get());
  struct stat locked{};
  const std::string own = path_.filename().string();
  if (::fstat(lock_.get(), &locked) == 0 && is_still_there(above_.get(), own, locked)) {
    ::unlinkat(above_.get(), own.c_str(), AT_REMOVEDIR);
  }
}

aio::File RankFolder::make_file(const std::string& kind, int64_t number, int64_t bytes) const {
  std::string name = kind;
  std::replace(name.begin(), name.end(), ' ', '_');
  return aio::File::create_unnamed(path_ / concat(name, '.', number), bytes, true, lock_.get());
}

} // namespace trireme::offload
