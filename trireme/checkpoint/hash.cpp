#include <trireme/checkpoint/hash.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

namespace trireme::checkpoint {
namespace {

std::string to_hex(XXH128_hash_t value) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, value);
  std::string hex;
  for (const unsigned char byte : canonical.digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

} // namespace

Hasher::Hasher() : state_(XXH3_createState()) {
  if (!state_) {
    throw std::bad_alloc();
  }
  XXH3_128bits_reset(state_.get());
}

void Hasher::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

void Hasher::update(const void* data, size_t bytes) {
  XXH3_128bits_update(state_.get(), data, bytes);
}

std::string Hasher::hex() const {
  return to_hex(XXH3_128bits_digest(state_.get()));
}

std::string hash_of(const void* data, size_t bytes) {
  return to_hex(XXH3_128bits(data, bytes));
}

// read(2) instead of a mapping: a disk error is then an errno and not a SIGBUS.
std::string hash_of_file(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const auto fail = [&]() {
    const int code = errno;
    if (fd >= 0) {
      ::close(fd);
    }
    throw InputError("checkpoint", concat("cannot read ", file.string(), ": ", std::strerror(code)));
  };
  if (fd < 0) {
    fail();
  }
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  Hasher hasher;
  std::vector<char> buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      fail();
    }
    if (n == 0) {
      break;
    }
    hasher.update(buffer.data(), static_cast<size_t>(n));
  }
  ::close(fd);
  return hasher.hex();
}

} // namespace trireme::checkpoint
