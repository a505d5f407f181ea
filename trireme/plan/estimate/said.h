#pragma once

#include <trireme/base/error.h>
#include <trireme/plan/estimate/run.h>

#include <string>

namespace trireme::estimate {

/// Like concat() if the run's items explain their bytes; otherwise empty.
template <typename... Args>
std::string said(const Run& run, const Args&... args) {
  return run.explains ? concat(args...) : std::string();
}

} // namespace trireme::estimate
