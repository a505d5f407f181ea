#include <trireme/checkpoint/new_file.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace trireme::checkpoint {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20; // hashed while it is still in cache, then written

} // namespace

NewFile::NewFile(const std::filesystem::path& path, uint64_t total_bytes)
    : path_(path), total_bytes_(total_bytes), temporary_(temporary_name(path)), fd_(create_new(temporary_, O_RDWR)) {
  if (!fd_) {
    fail("create");
  }
}

NewFile::~NewFile() {
  discard();
}

bool NewFile::has_room() const {
  struct statvfs disk{};
  return ::fstatvfs(fd_.get(), &disk) == 0 && static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize >= total_bytes_;
}

void NewFile::reserve() {
  if (total_bytes_ > 0 && ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(total_bytes_)) != 0 && is_disk_full(errno)) {
    fail("write");
  }
}

void NewFile::expect_there(uint64_t begin, uint64_t end) {
  if (begin < end) {
    there_.push_back({begin, end});
  }
}

// The next piece, up to the next boundary of declared bytes.
NewFile::Extent NewFile::next_piece(uint64_t bytes) {
  while (next_there_ < there_.size() && there_[next_there_].end <= position_) {
    ++next_there_;
  }
  uint64_t most = std::min<uint64_t>(bytes, kPieceBytes);
  const bool is_there = next_there_ < there_.size() && there_[next_there_].begin <= position_;
  if (next_there_ < there_.size()) {
    most = std::min(most, (is_there ? there_[next_there_].end : there_[next_there_].begin) - position_);
  }
  return {static_cast<size_t>(most), is_there};
}

void NewFile::write(const char* data, size_t bytes) {
  while (bytes > 0) {
    const Extent piece = next_piece(bytes);
    hasher_.update(data, piece.bytes);
    bool differs = true;
    if (piece.is_there) {
      buffer_.resize(kPieceBytes);
      read_back(buffer_.data(), piece.bytes);
      differs = std::memcmp(buffer_.data(), data, piece.bytes) != 0;
      replaced_bytes_ += differs ? piece.bytes : 0;
      if (differs && ::lseek(fd_.get(), static_cast<off_t>(position_), SEEK_SET) < 0) {
        fail("write");
      }
    }
    if (differs) {
      put(data, piece.bytes);
    }
    position_ += piece.bytes;
    data += piece.bytes;
    bytes -= piece.bytes;
  }
}

void NewFile::pad(uint64_t bytes) {
  while (bytes > 0) {
    const Extent piece = next_piece(bytes);
    buffer_.assign(std::max(buffer_.size(), piece.bytes), '\0');
    piece.is_there ? read_back(buffer_.data(), piece.bytes) : put(buffer_.data(), piece.bytes);
    hasher_.update(buffer_.data(), piece.bytes);
    position_ += piece.bytes;
    bytes -= piece.bytes;
  }
}

void NewFile::put(const char* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::write(fd_.get(), data + done, bytes - done);
    if (n < 0 && errno != EINTR) {
      fail("write");
    }
    done += n > 0 ? static_cast<size_t>(n) : 0;
  }
}

void NewFile::read_back(char* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::read(fd_.get(), data + done, bytes - done);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      errno = n == 0 ? EIO : errno; // the file is shorter than what was written
      fail("read back");
    }
    done += static_cast<size_t>(n);
  }
}

uint64_t NewFile::bytes_there() const {
  uint64_t bytes = 0;
  for (const Blocks& blocks : there_) {
    bytes += blocks.end - blocks.begin;
  }
  return bytes - replaced_bytes_;
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
  const std::string why = describe_write_failure(errno, path_, total_bytes_); // before discard() makes room
  discard();
  throw Error("safetensors", concat("cannot ", what, ' ', path_.string(), ": ", why), "Existing files are unchanged.");
}

} // namespace trireme::checkpoint
