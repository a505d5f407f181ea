#include <trireme/base/new_folder.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/path.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace trireme {
namespace {

namespace fs = std::filesystem;

// A link's own folder: what replaces it is there, not in the place of the link.
fs::path resolved(const fs::path& folder) {
  const fs::path whole = without_end_slash(fs::absolute(folder).lexically_normal());
  std::error_code failed;
  const fs::path canonical = fs::canonical(whole, failed);
  return failed ? whole : canonical;
}

} // namespace

void NewFolder::check_place(const std::string& area, const fs::path& place) {
  const fs::path folder = resolved(place);
  struct statx about = {};
  if (::statx(AT_FDCWD, folder.c_str(), 0, STATX_BASIC_STATS, &about) == 0 &&
      (about.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) {
    throw InputError(area, concat(folder.string(), " is where a file system is mounted, and cannot be replaced"),
                     "Name a folder in it.");
  }
  fs::path parent = folder.parent_path();
  std::error_code failed;
  while (!fs::exists(parent, failed) && parent.has_relative_path()) {
    parent = parent.parent_path();
  }
  const bool is_folder = fs::is_directory(parent, failed);
  if (!is_folder || ::access(parent.c_str(), W_OK | X_OK) != 0) {
    throw InputError(area,
                     concat("cannot make ", folder.string(), ": ", parent.string(),
                            is_folder ? " may not be written" : " is not a folder"),
                     "Name a folder in one that you may write.");
  }
}

NewFolder::NewFolder(std::string area, const fs::path& place, const std::string& before, const std::string& behind)
    : area_(std::move(area)), place_(resolved(place)), prefix_(before + place_.filename().string() + behind) {
  check_place(area_, place_);
  try {
    fs::create_directories(place_.parent_path());
    remove_left();
    make();
  } catch (const fs::filesystem_error& error) {
    throw Error(area_, concat("cannot make a folder beside ", place_.string(), ": ", error.code().message()),
                "Name a folder in one that you may write.");
  }
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!made_.empty()) {
    fs::remove_all(made_, ignored);
  }
}

bool NewFolder::rename_by(unsigned how) const {
  return ::renameat2(AT_FDCWD, made_.c_str(), AT_FDCWD, place_.c_str(), how) == 0;
}

void NewFolder::take_place(const std::function<void(const fs::path&)>& check) {
  check(place_);
  sync_folder(made_);
  if (rename_by(RENAME_NOREPLACE)) {
    made_.clear();
  } else if (rename_by(RENAME_EXCHANGE)) { // the old folder is at made_ now
    try {
      check(made_);
    } catch (const InputError&) {
      rename_by(RENAME_EXCHANGE);
      check(place_);
      throw;
    }
  } else { // this file system can do neither
    const fs::path old = made_.string() + ".old";
    std::error_code ignored;
    fs::rename(place_, old, ignored);
    if (::rename(made_.c_str(), place_.c_str()) != 0) {
      const std::string why = std::strerror(errno);
      fs::rename(old, place_, ignored);
      throw Error(area_, concat("cannot rename ", made_.string(), " to ", place_.string(), ": ", why),
                  "Name a new folder.");
    }
    fs::remove_all(old, ignored);
    made_.clear();
  }
  sync_folder(place_.parent_path());
}

fs::path NewFolder::keep() {
  const fs::path kept = place_.parent_path() / concat(place_.filename().string(), ".finished.", std::random_device()());
  std::error_code failed;
  fs::rename(made_, kept, failed);
  return failed ? std::exchange(made_, {}) : (made_.clear(), kept);
}

// Locked while this process lives, so that no other one takes it for what a killed one left.
void NewFolder::make() {
  do {
    do {
      made_ = place_.parent_path() / concat(prefix_, std::random_device()());
    } while (!fs::create_directory(made_));
    lock_ = Descriptor(::open(made_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (lock_) {
      ::flock(lock_.get(), LOCK_EX); // a file system without locks keeps what killed processes leave
    }
  } while (lock_ ? !is_at(lock_.get(), made_) : errno == ENOENT); // removed before it was locked
}

// What killed processes left.
void NewFolder::remove_left() const {
  std::error_code ignored;
  for (const auto& item : fs::directory_iterator(place_.parent_path(), ignored)) {
    const std::string name = item.path().filename().string();
    const std::string rest = name.starts_with(prefix_) ? name.substr(prefix_.size()) : "";
    const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
    const bool old = digits > 0 && rest.substr(digits) == ".old" && fs::exists(place_, ignored);
    if (digits == 0 || (digits != rest.size() && !old)) {
      continue;
    }
    const Descriptor left(::open(item.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (left && ::flock(left.get(), LOCK_EX | LOCK_NB) == 0) {
      fs::remove_all(item.path(), ignored);
    }
  }
}

} // namespace trireme
