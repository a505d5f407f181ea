#include <trireme/data/tokenize/input_file.h>

#include <trireme/base/error.h>
#include <trireme/base/plain_text.h>
#include <trireme/data/packed.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace trireme::data {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;

void refuse_packing(std::string_view head, const std::string& where) {
  if (const std::string_view packing = packing_of(head); !packing.empty()) {
    throw InputError("data", concat(where, " is packed with ", packing, ", only one layer of gzip is supported"),
                     "Unpack it first and name the unpacked file.");
  }
}

} // namespace

InputFile::InputFile(const std::filesystem::path& path)
    : source_(path.string()), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status{};
  if (!file_ || ::fstat(file_.get(), &status) != 0) {
    throw InputError("data", concat("cannot read ", source_, ": ", std::strerror(errno)), "Check the path.");
  }
  if (!S_ISREG(status.st_mode)) {
    throw InputError("data", concat(source_, " is not a file"), "Name text files or files of JSON lines.");
  }
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  if (!fill()) {
    throw InputError("data", concat(source_, " is empty"), "Name files with text in them.");
  }
  const std::string_view head = rest_.substr(0, 16);
  if (packing_of(head) == "gzip") {
    gzip_ = std::make_unique<GunzipStream>(source_);
  } else {
    refuse_packing(head, source_);
  }
}

// False at the end of the file.
bool InputFile::fill() {
  buffer_.resize(kReadBytes);
  ssize_t count = 0;
  do {
    count = ::read(file_.get(), buffer_.data(), buffer_.size());
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    throw InputError("data", concat("cannot read ", source_, ": ", std::strerror(errno)), "Check the disk.");
  }
  bytes_read_ += count;
  rest_ = std::string_view(buffer_).substr(0, static_cast<size_t>(count));
  return count > 0;
}

// At least one byte, except at the end.
size_t InputFile::take(std::string& out, size_t bytes) {
  for (;;) {
    const size_t before = out.size();
    if (gzip_) {
      out.resize(before + bytes);
      const size_t count = gzip_->read(rest_, std::span(out).subspan(before));
      out.resize(before + count);
      if (count > 0) {
        return count;
      }
    } else if (!rest_.empty()) {
      const size_t count = std::min(bytes, rest_.size());
      out += rest_.substr(0, count);
      rest_.remove_prefix(count);
      return count;
    }
    if (!fill()) {
      if (gzip_) {
        gzip_->finish();
      }
      return 0;
    }
  }
}

bool InputFile::read(std::string& out, size_t bytes) {
  if (!std::exchange(at_start_, false)) {
    return take(out, bytes) > 0;
  }
  std::string head;
  while (head.size() < kReadBytes && take(head, kReadBytes - head.size()) > 0) {
  }
  if (gzip_) {
    refuse_packing(head, concat("what is in ", source_));
  }
  head = plain_text("data", source_, std::move(head));
  if (head.empty()) {
    throw InputError("data", concat(source_, " is empty"), "Name files with text in them.");
  }
  out += head;
  return true;
}

} // namespace trireme::data
