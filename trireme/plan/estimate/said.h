#pragma once

#include <trireme/base/error.h>
#include <trireme/plan/estimate/run.h>

#include <string>

namespace trireme::estimate {

/// Writes the arguments as concat() does, if the run's items are to say how their bytes come about.
template <typename... Args>
std::string said(const Run& run, const Args&... args) {
  return run.explains ? concat(args...) : std::string();
}

} // namespace trireme::estimate
