#pragma once

#include <trireme/base/error.h>

#include <cstdint>
#include <string>

namespace trireme::engine {

/// Names in a checkpoint of what each replica has for itself.
inline std::string of_replica(int64_t replica, const std::string& name) {
  return concat("replica", replica, '/', name);
}

} // namespace trireme::engine
