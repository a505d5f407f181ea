#include <trireme/memory/aio/file.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/units.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace trireme::aio {

namespace fs = std::filesystem;

struct File::Opened {
  fs::path path;
  Descriptor descriptor;
  mutable std::atomic<int64_t> size = 0;
  bool direct = false;
};

namespace {

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

Descriptor open_descriptor(const fs::path& path, int flags) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  } while (fd < 0 && errno == EINTR);
  return Descriptor(fd);
}

// Some file systems accept O_DIRECT and then refuse every transfer.
bool reads_directly(int fd, int64_t size) {
  if (size < kAlignment) {
    return true;
  }
  const Memory block(kAlignment);
  ssize_t count = -1;
  do {
    count = ::pread(fd, block.data(), kAlignment, 0);
  } while (count < 0 && errno == EINTR);
  return count >= 0 || errno != EINVAL;
}

// Opens the file again for direct transfers; returns `opened` if there are none.
Descriptor made_direct(const fs::path& path, int flags, Descriptor opened, int64_t size, bool& direct) {
  const int64_t alignment = direct_alignment(path);
  direct = false;
  if (alignment == 0 || alignment > kAlignment) {
    return opened;
  }
  Descriptor again = open_descriptor(path, flags | O_DIRECT);
  struct stat one{};
  struct stat other{};
  if (!again || ::fstat(opened.get(), &one) != 0 || ::fstat(again.get(), &other) != 0 || one.st_dev != other.st_dev ||
      one.st_ino != other.st_ino || !reads_directly(again.get(), size)) {
    return opened;
  }
  direct = true;
  return again;
}

void check_size(const fs::path& path, int64_t bytes) {
  if (bytes < 0) {
    throw Error("aio", concat("cannot make a file of ", bytes, " bytes: ", path.string()));
  }
}

// Reserves the blocks from `begin` on. Returns 0, or errno.
int reserve(int fd, const fs::path& path, int64_t begin, int64_t end) {
  if (begin == end) {
    return 0;
  }
  // posix_fallocate() would write a byte into each block if the file system cannot reserve.
  int result = 0;
  do {
    result = ::fallocate(fd, 0, begin, end - begin);
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    return 0;
  }
  if (errno != EOPNOTSUPP && errno != ENOSYS) {
    return errno;
  }
  std::error_code unknown;
  const auto space = fs::space(folder_of(path), unknown);
  if (!unknown && space.available < static_cast<uintmax_t>(end - begin)) {
    return ENOSPC;
  }
  do {
    result = ::ftruncate(fd, end);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

Error failed(const char* what, int64_t bytes, const fs::path& path, int code, const char* next) {
  return Error("aio",
               concat("cannot ", what, ' ', format_bytes(bytes), " for ", path.string(), ": ", std::strerror(code),
                      free_space_near(path)),
               next);
}

Error not_reserved(int64_t bytes, const fs::path& path, int code) {
  return failed("reserve", bytes, path, code, is_disk_full(code) ? kMakeRoom : "Name a folder on another disk.");
}

} // namespace

int64_t direct_alignment([[maybe_unused]] const fs::path& path) {
#ifdef STATX_DIOALIGN
  struct statx found{};
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_DIOALIGN, &found) == 0 && (found.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max(found.stx_dio_mem_align, found.stx_dio_offset_align);
  }
#endif
  return -1;
}

std::string free_space_near(const fs::path& path) {
  std::error_code unknown;
  const auto space = fs::space(folder_of(path), unknown);
  return unknown ? "" : concat(", ", format_bytes(space.available), " are free in ", folder_of(path).string());
}

File::File(std::shared_ptr<const Opened> opened) : opened_(std::move(opened)) {}

// Makes a File of the new file `made`: reserves its blocks and, if possible, opens it again for direct transfers.
// `place`: its path for the system; "": it has no name.
File File::sized(const fs::path& path, const fs::path& place, int64_t bytes, Descriptor made, bool direct) {
  const int64_t size = round_up(bytes);
  if (!made) {
    throw failed("make a file of", size, path, errno,
                 "Check that the folder exists and that this user may write there.");
  }
  auto opened = std::make_shared<Opened>();
  opened->path = path;
  opened->size = size;
  opened->descriptor = std::move(made);
  if (const int code = reserve(opened->descriptor.get(), path, 0, size); code != 0) {
    opened->descriptor.close();
    if (!place.empty()) {
      ::unlink(place.c_str()); // before the free space is read: a part may have been reserved
    }
    throw not_reserved(size, path, code);
  }
  if (direct) {
    const fs::path again = !place.empty() ? place : fs::path(concat("/proc/self/fd/", opened->descriptor.get()));
    opened->descriptor = made_direct(again, O_RDWR, std::move(opened->descriptor), size, opened->direct);
  }
  return File(std::move(opened));
}

File File::create(const fs::path& path, const fs::path& place, int64_t bytes, bool direct) {
  return sized(path, place, bytes, create_new(place, O_RDWR), direct);
}

File File::create(const fs::path& path, int64_t bytes, bool direct) {
  check_size(path, bytes);
  return create(path, path, bytes, direct);
}

File File::create_unnamed(const fs::path& path, int64_t bytes, bool direct, int folder) {
  check_size(path, bytes);
  const fs::path place = folder < 0 ? path : fs::path(concat("/proc/self/fd/", folder)) / path.filename();
  const bool has_name = folder >= 0; // /proc keeps showing its name
  Descriptor made = has_name ? Descriptor() : open_descriptor(folder_of(place), O_RDWR | O_TMPFILE | O_EXCL);
  if (has_name || (!made && (errno == EOPNOTSUPP || errno == EISDIR ||
                             errno == EINVAL))) { // or a file system without unnamed files
    File named = create(path, place, bytes, direct);
    if (::unlink(place.c_str()) != 0) {
      throw Error("aio", concat("cannot remove the name of ", path.string(), ": ", std::strerror(errno)),
                  "Remove it by hand.");
    }
    return named;
  }
  return sized(path, {}, bytes, std::move(made), direct);
}

File File::open(const fs::path& path, bool direct) {
  auto found = std::make_shared<Opened>();
  found->path = path;
  int flags = O_RDWR;
  found->descriptor = open_descriptor(path, flags);
  if (!found->descriptor && (errno == EACCES || errno == EROFS || errno == EPERM)) {
    flags = O_RDONLY;
    found->descriptor = open_descriptor(path, flags);
  }
  struct stat status{};
  if (!found->descriptor || ::fstat(found->descriptor.get(), &status) != 0) {
    throw Error("aio", concat("cannot open ", path.string(), ": ", std::strerror(errno)),
                "Check the path and its permissions.");
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error("aio", concat("cannot open ", path.string(), ": it is not a regular file"), "Check the path.");
  }
  found->size = status.st_size;
  if (direct) {
    found->descriptor = made_direct(path, flags, std::move(found->descriptor), found->size, found->direct);
  }
  return File(std::move(found));
}

void File::grow(int64_t bytes) const {
  const int64_t before = size();
  const int64_t size = round_up(bytes);
  if (size <= before) {
    return;
  }
  if (const int code = reserve(descriptor(), path(), before, size); code != 0) {
    throw not_reserved(size - before, path(), code);
  }
  opened_->size = size;
}

const fs::path& File::path() const {
  return opened_->path;
}

int64_t File::size() const {
  return opened_->size;
}

bool File::direct() const {
  return opened_->direct;
}

int File::descriptor() const {
  return opened_->descriptor.get();
}

void File::sync() const {
  int result = 0;
  do {
    result = ::fdatasync(descriptor());
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    const int code = errno;
    throw Error(
        "aio", concat("cannot sync ", path().string(), ": ", std::strerror(code), free_space_near(path())),
        "What was written to it may be lost. Look at the system's log (dmesg), or name a folder on another disk.");
  }
}

} // namespace trireme::aio
