#include "tests/support/gate.h"

#include <trireme/base/error.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace trireme::test {

Gate::Gate() : descriptor_(::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC)) {
  if (descriptor_ < 0) {
    throw Error("test", "cannot make a gate.");
  }
}

Gate::~Gate() {
  ::close(descriptor_);
}

void Gate::open(int times) {
  const uint64_t number = static_cast<uint64_t>(times);
  if (::write(descriptor_, &number, sizeof(number)) != sizeof(number)) {
    throw Error("test", "cannot open a gate.");
  }
}

void Gate::wait(int times) {
  uint64_t one = 0;
  while (times > 0) {
    if (::read(descriptor_, &one, sizeof(one)) == sizeof(one)) {
      --times;
    } else if (errno != EINTR) {
      throw Error("test", "cannot wait at a gate.");
    }
  }
}

} // namespace trireme::test
