#pragma once

#include <cstdint>

namespace trireme::offload {

/// Bytes of a rank's offloaded arrays read from files and written to them so far, by all of its stores.
struct Traffic {
  int64_t read = 0;
  int64_t written = 0;
};

} // namespace trireme::offload
