#include <trireme/data/mapped_tokens.h>

#include <trireme/base/error.h>
#include <trireme/data/packed.h>
#include <trireme/data/token_scan.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <string_view>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

using Largest = std::vector<std::atomic<int64_t>>;

// One per file, in its current version, and width. A file that was just written is not cached: a second write could
// leave the same time stamp.
std::shared_ptr<Largest> known_of(const struct stat& status, int64_t token_bytes, size_t blocks) {
  constexpr time_t kSettled = 2;
  const auto fresh = [&] {
    auto largest = std::make_shared<Largest>(blocks);
    std::fill(largest->begin(), largest->end(), -1);
    return largest;
  };
  if (::time(nullptr) - std::max(status.st_mtim.tv_sec, status.st_ctim.tv_sec) < kSettled) {
    return fresh();
  }
  static std::mutex mutex;
  static std::map<std::array<int64_t, 8>, std::shared_ptr<Largest>> files;
  const auto number = [](auto value) { return static_cast<int64_t>(value); };
  const std::array<int64_t, 8> key = {number(status.st_dev),          number(status.st_ino),
                                      number(status.st_size),         number(status.st_mtim.tv_sec),
                                      number(status.st_mtim.tv_nsec), number(status.st_ctim.tv_sec),
                                      number(status.st_ctim.tv_nsec), token_bytes};
  const std::lock_guard lock(mutex);
  std::shared_ptr<Largest>& known = files[key];
  known = known ? known : fresh();
  return known;
}

} // namespace

MappedTokens::MappedTokens(fs::path path, int64_t first_token, int64_t token_bytes)
    : path_(std::move(path)), first_token_(first_token), token_bytes_(token_bytes == 0 ? 2 : token_bytes) {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status{};
  if (fd < 0 || ::fstat(fd, &status) != 0) {
    fail(fd, std::strerror(errno), "Check the path.");
  }
  if (!S_ISREG(status.st_mode)) {
    fail(fd, "not a file", "Name files, not folders.");
  }
  bytes_ = static_cast<size_t>(status.st_size);
  if (bytes_ == 0) {
    fail(fd, "it is empty");
  }
  void* address = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    fail(fd, concat("mmap: ", std::strerror(errno)));
  }
  ::close(fd);
  data_ = static_cast<const unsigned char*>(address);
  // Prefetches small files entirely. In larger files a sample is a few random pages, for which the system's usual
  // read-ahead of 128 kB would be mostly wasted.
  constexpr size_t kReadAhead = size_t{256} << 20;
  ::madvise(address, bytes_, bytes_ <= kReadAhead ? MADV_WILLNEED : MADV_RANDOM);
  try {
    if (token_bytes == 0) {
      refuse_other_formats();
    }
    if (bytes_ % static_cast<size_t>(token_bytes_) != 0) {
      fail(-1,
           token_bytes_ == 2 ? concat("it is ", bytes_, " bytes long, an odd number")
                             : concat("it is ", bytes_, " bytes long, not a multiple of ", token_bytes_),
           concat("Tokens are ", token_bytes_, " bytes each (uint", 8 * token_bytes_,
                  "); the file is cut off or another format."));
    }
  } catch (...) {
    ::munmap(address, bytes_);
    throw;
  }
  largest_ = known_of(status, token_bytes_, static_cast<size_t>(num_blocks()));
}

MappedTokens::~MappedTokens() {
  ::munmap(const_cast<unsigned char*>(data_), bytes_);
}

void MappedTokens::refuse_other_formats() const {
  constexpr size_t kLooked = 1 << 20;
  constexpr const char* kGoOn = " If these are 16-bit tokens anyway, set data.token_bytes to 2.";
  const std::string_view head(reinterpret_cast<const char*>(data_), std::min<size_t>(bytes_, 16));
  if (const std::string_view packing = packing_of(head); !packing.empty()) {
    fail(-1, concat("it is packed with ", packing), concat("Unpack it; files of tokens are memory-mapped.", kGoOn));
  }
  if (head.starts_with("\x93NUMPY")) {
    fail(-1, "it begins with the header of a .npy file",
         concat("Write the tokens alone: np.load(FILE).astype(np.uint16).tofile(NEW).", kGoOn));
  }
  const int64_t suggested = suggested_token_bytes({data_, std::min(bytes_, kLooked)});
  if (suggested == 4) {
    fail(-1, "every second 16-bit value is 0 or close to it, so these are probably 32-bit tokens",
         concat("Set data.token_bytes to 4 if they are.", kGoOn));
  }
  if (suggested == 8) {
    fail(-1, "three of four 16-bit values are 0 or close to it, so these are probably 64-bit tokens",
         concat("Convert them if they are: np.fromfile(FILE, np.int64).astype(np.uint16).tofile(NEW), or np.uint32 and "
                "data.token_bytes 4.",
                kGoOn));
  }
}

void MappedTokens::read(int64_t start, std::span<int64_t> out) const {
  const unsigned char* from = data_ + token_bytes_ * start;
  for (int64_t& token : out) {
    token = from[0] | from[1] << 8;
    if (token_bytes_ == 4) {
      token |= int64_t{from[2]} << 16 | int64_t{from[3]} << 24;
    }
    from += token_bytes_;
  }
}

std::span<const unsigned char> MappedTokens::block(int64_t index) const {
  const auto begin = static_cast<size_t>(index * kBlockBytes);
  return {data_ + begin, std::min<size_t>(kBlockBytes, bytes_ - begin)};
}

int64_t MappedTokens::largest_in(int64_t index, int64_t next) const {
  std::atomic<int64_t>& known = (*largest_)[static_cast<size_t>(index)];
  if (known < 0) {
    const auto advise = [](std::span<const unsigned char> part, int advice) {
      ::madvise(const_cast<unsigned char*>(part.data()), part.size(), advice);
    };
    if (next < num_blocks()) {
      advise(block(next), MADV_WILLNEED);
    }
    known = largest_token(block(index), token_bytes_);
    advise(block(index), MADV_DONTNEED); // the pages stay in the system's cache
  }
  return known;
}

void MappedTokens::fail(int fd, const std::string& why, const std::string& next) const {
  if (fd >= 0) {
    ::close(fd);
  }
  throw InputError("data", concat("cannot read tokens from ", path_.string(), ": ", why), next);
}

} // namespace trireme::data
