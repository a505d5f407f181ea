#include <trireme/launch/secret.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace trireme::launch {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw Error("launch", concat("cannot ", what, " the secret of the job: ", std::strerror(errno)));
}

} // namespace

std::string random_secret() {
  unsigned char bytes[32];
  if (::getrandom(bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) {
    refuse("draw");
  }
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

SecretMemory::SecretMemory(const std::string& text)
    : memory_(::memfd_create("trireme-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (!memory_ || ::write(memory_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    refuse("keep");
  }
  ::fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
}

Descriptor SecretMemory::open() const {
  Descriptor own(::open(concat("/proc/self/fd/", memory_.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!own) {
    refuse("hand over");
  }
  return own;
}

} // namespace trireme::launch
