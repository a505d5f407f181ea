#pragma once

#include <trireme/base/error.h>

#include <cstdint>
#include <string>

namespace trireme::engine {

/// Name in a checkpoint of a tensor that each replica has its own values of.
inline std::string of_replica(int64_t replica, const std::string& name) {
  return concat("replica", replica, '/', name);
}

} // namespace trireme::engine
