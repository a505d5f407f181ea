#include <trireme/store/secret.h>

#include <trireme/base/descriptor.h>
#include <trireme/base/env.h>
#include <trireme/base/error.h>

#include <openssl/crypto.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace trireme::store {
namespace {

constexpr const char* kHowToMake =
    "Make one with: (umask 077; head -c 32 /dev/urandom > FILE), the same file on every host.";

// Readable by this user only; or root's with one group that may read it, as Kubernetes mounts secrets.
bool is_private(const struct stat& status) {
  const bool own = status.st_uid == ::geteuid() && (status.st_mode & 077) == 0;
  const bool of_root = status.st_uid == 0 && ::geteuid() != 0 && (status.st_mode & 037) == 0;
  return own || of_root;
}

int hex_value(char digit) {
  if (digit >= '0' && digit <= '9') {
    return digit - '0';
  }
  const char small = static_cast<char>(digit | 0x20);
  return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

/// Converts 64 digits to 32 bytes; "" for anything else.
std::string bytes_of_hex(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  std::string bytes;
  if (text.size() != 2 * Secret::kBytes ||
      std::any_of(text.begin(), text.end(), [](char digit) { return hex_value(digit) < 0; })) {
    return bytes;
  }
  for (size_t place = 0; place < text.size(); place += 2) {
    bytes += static_cast<char>(hex_value(text[place]) * 16 + hex_value(text[place + 1]));
  }
  return bytes;
}

/// Reads up to `most` bytes from the start of the file, independent of its offset, which ranks share.
std::string read_start(int descriptor, size_t most) {
  std::string bytes(most, '\0');
  size_t filled = 0;
  while (filled < most) {
    const ssize_t count = ::pread(descriptor, bytes.data() + filled, most - filled, static_cast<off_t>(filled));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      break;
    }
    filled += static_cast<size_t>(count);
  }
  bytes.resize(filled);
  return bytes;
}

/// The secret in a file; "" if it has none.
std::string bytes_in(int descriptor) {
  const std::string content = read_start(descriptor, 2 * Secret::kBytes + 3);
  return content.size() == Secret::kBytes ? content : bytes_of_hex(content);
}

Secret from_descriptor(int64_t number) {
  const std::string bytes = number >= 0 && number <= 1'000'000 ? bytes_in(static_cast<int>(number)) : "";
  if (bytes.empty()) {
    throw InputError(
        "store",
        concat("TRIREME_SECRET_FD=", number, " is not the memory file with the secret of the job in this process."),
        "trireme launch sets it, and a program between it and the rank must not close it. Started by hand: unset it.");
  }
  return Secret(bytes);
}

Secret from_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0) {
    throw InputError("store",
                     concat("the secret in TRIREME_SECRET_FILE=", path, " cannot be read: ", std::strerror(errno), "."),
                     kHowToMake);
  }
  if (!S_ISREG(status.st_mode) || !is_private(status)) {
    throw InputError("store",
                     concat("TRIREME_SECRET_FILE=", path, " must be a file of this user that nobody else may read."),
                     concat("Run: chmod 600 ", path));
  }
  const std::string bytes = bytes_in(file.get());
  if (bytes.empty()) {
    throw InputError("store", concat("TRIREME_SECRET_FILE=", path, " must hold 32 bytes or 64 hexadecimal digits."),
                     kHowToMake);
  }
  return Secret(bytes);
}

} // namespace

Secret::Secret(std::string_view bytes) : empty_(false) {
  if (bytes.size() != kBytes) {
    throw InputError("store", concat("a secret has ", kBytes, " bytes, not ", bytes.size(), "."), kHowToMake);
  }
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

Secret::~Secret() {
  OPENSSL_cleanse(bytes_.data(), bytes_.size());
}

Secret Secret::random() {
  Secret secret;
  fill_random(secret.bytes_.data(), kBytes);
  secret.empty_ = false;
  return secret;
}

std::optional<Secret> Secret::from_hex(std::string_view digits) {
  const std::string bytes = bytes_of_hex(digits);
  return bytes.empty() ? std::nullopt : std::optional(Secret(bytes));
}

std::string Secret::hex() const {
  std::string digits;
  for (const char byte : bytes()) {
    digits += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    digits += "0123456789abcdef"[static_cast<unsigned char>(byte) & 15];
  }
  return digits;
}

Secret Secret::from_environment() {
  if (const auto number = env::integer("TRIREME_SECRET_FD")) {
    return from_descriptor(*number);
  }
  if (const auto path = env::text("TRIREME_SECRET_FILE")) {
    return from_file(*path);
  }
  return {};
}

int Secret::memory_file() const {
  Descriptor file(::memfd_create("trireme-secret", MFD_ALLOW_SEALING));
  if (!file || ::write(file.get(), bytes_.data(), kBytes) != static_cast<ssize_t>(kBytes) ||
      ::fchmod(file.get(), 0600) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    throw Error("store", concat("cannot make a memory file for the secret of the job: ", std::strerror(errno), "."));
  }
  return file.release();
}

void fill_random(void* buffer, size_t bytes) {
  size_t filled = 0;
  while (filled < bytes) {
    const ssize_t count = ::getrandom(static_cast<char*>(buffer) + filled, bytes - filled, 0);
    if (count < 0 && errno != EINTR) {
      throw Error("store", concat("the kernel gives no random numbers: ", std::strerror(errno), "."));
    }
    filled += count > 0 ? static_cast<size_t>(count) : 0;
  }
}

} // namespace trireme::store
