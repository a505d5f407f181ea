#pragma once

#include <trireme/base/error.h>
#include <trireme/store/sockets.h>

#include <unistd.h>

#include <random>

namespace trireme::test {

/// A port of the loopback interface that nobody listens on. It lies below those that the kernel gives to connections
/// and to whoever asks for any port, so that no other test gets it before it is used.
inline int free_port() {
  std::random_device random;
  while (true) {
    try {
      const int descriptor = store::listen_on({"127.0.0.1", 15'000 + static_cast<int>(random() % 15'000)});
      const int port = store::bound_port(descriptor);
      ::close(descriptor);
      return port;
    } catch (const InputError&) { // in use
    }
  }
}

} // namespace trireme::test
