#include <trireme/offload/rank_folder.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace trireme::offload {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNext = "Name another folder with \"nvme_path\".";

/// The process that holds the lock; 0: the kernel does not tell, as in another PID namespace.
/// A line of /proc/locks is "1: FLOCK  ADVISORY  WRITE 12345 fd:00:6789 0 EOF".
int64_t holder_of(const struct stat& folder) {
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, write, place;
    int64_t pid = 0;
    unsigned major = 0, minor = 0;
    unsigned long inode = 0;
    if (words >> number >> kind >> advisory >> write >> pid >> place && kind == "FLOCK" && std::sscanf(place.c_str(), "%x:%x:%lu", &major, &minor, &inode) == 3 &&
        inode == folder.st_ino && makedev(major, minor) == folder.st_dev) {
      return pid;
    }
  }
  return 0;
}

[[noreturn]] void refuse_used(const fs::path& path, const struct stat& folder) {
  const int64_t pid = holder_of(folder);
  if (pid == ::getpid()) {
    throw InputError("offload", concat(path.string(), " holds the offloaded files of another engine of this process"), "Let go of that engine first, or give each an \"nvme_path\" of its own.");
  }
  throw InputError("offload", concat(path.string(), " holds the offloaded files of another job", pid > 0 ? concat(" (process ", pid, ")") : "", " that still runs"),
                   "Give each job an \"nvme_path\" of its own, or end that one.");
}

bool is_still_there(const fs::path& path, const struct stat& locked) {
  struct stat now {};
  return ::stat(path.c_str(), &now) == 0 && now.st_ino == locked.st_ino && now.st_dev == locked.st_dev;
}

} // namespace

std::shared_ptr<RankFolder> RankFolder::open(const fs::path& parent, int rank, const std::string& name) {
  const fs::path path = fs::absolute(parent) / concat(name, ".rank", rank);
  const auto fail = [&](const char* what, int code) { throw InputError("offload", concat("cannot ", what, ' ', path.string(), ": ", describe_write_failure(code, parent / ".", 0)), kNext); };
  // Again, if its last user has removed it between open() and flock().
  for (;;) {
    std::error_code error;
    make_private_folders(path, error);
    if (error) {
      fail("make the folder", error.value());
    }
    Descriptor lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!lock && errno == ENOENT) {
      continue;
    }
    struct stat locked {};
    if (!lock || ::fstat(lock.get(), &locked) != 0) {
      fail("open", errno);
    }
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        refuse_used(path, locked);
      }
      log::warning("offload: the file system of ", path.string(), " has no locks (", std::strerror(errno), "): see to it that no other job uses this \"nvme_path\"");
    }
    if (!is_still_there(path, locked)) {
      continue;
    }
    for (const fs::directory_entry& left : fs::directory_iterator(path, error)) {
      fs::remove_all(left.path(), error);
    }
    return std::shared_ptr<RankFolder>(new RankFolder(path, std::move(lock)));
  }
}

RankFolder::~RankFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored); // while it is locked
}

} // namespace trireme::offload
