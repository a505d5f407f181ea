#include <trireme/checkpoint/new_file.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace trireme::checkpoint {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20; // hashed while it is still in cache, then written

} // namespace

NewFile::NewFile(const std::filesystem::path& path, uint64_t total_bytes)
    : path_(path), total_bytes_(total_bytes), temporary_(temporary_name(path)), fd_(::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
  if (!fd_) {
    fail("create");
  }
}

NewFile::~NewFile() {
  discard();
}

bool NewFile::has_room() const {
  struct statvfs disk {};
  return ::fstatvfs(fd_.get(), &disk) == 0 && static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize >= total_bytes_;
}

void NewFile::reserve() {
  if (total_bytes_ > 0 && ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(total_bytes_)) != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    fail("write");
  }
}

void NewFile::write(const char* data, size_t bytes) {
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kPieceBytes);
    hasher_.update(data, piece);
    for (size_t done = 0; done < piece;) {
      const ssize_t n = ::write(fd_.get(), data + done, piece - done);
      if (n < 0 && errno != EINTR) {
        fail("write");
      }
      done += n > 0 ? static_cast<size_t>(n) : 0;
    }
    data += piece;
    bytes -= piece;
  }
}

void NewFile::skip(uint64_t bytes) {
  std::vector<char> buffer(std::min<uint64_t>(bytes, kPieceBytes));
  while (bytes > 0) {
    const ssize_t n = ::read(fd_.get(), buffer.data(), std::min<uint64_t>(bytes, buffer.size()));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      errno = n == 0 ? EIO : errno; // the file is shorter than what was put into it
      fail("read back");
    }
    hasher_.update(buffer.data(), static_cast<size_t>(n));
    bytes -= static_cast<uint64_t>(n);
  }
}

std::string NewFile::commit() {
  if (::fsync(fd_.get()) != 0) {
    fail("sync");
  }
  if (::close(fd_.release()) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("finish");
  }
  temporary_.clear();
  sync_folder(path_.parent_path());
  return hasher_.hex();
}

void NewFile::discard() {
  fd_.close();
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
    temporary_.clear();
  }
}

void NewFile::fail(const char* what) {
  const int code = errno;
  discard();
  throw Error("safetensors", concat("cannot ", what, ' ', path_.string(), ": ", describe_write_failure(code, path_, total_bytes_)),
              "Nothing that was there before is changed.");
}

} // namespace trireme::checkpoint
