#pragma once

#include <trireme/device/peak_bytes.h>

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace trireme::test {

/// Of what f() and the threads of its backward do.
template <class F>
int64_t peak_of(const F& f) {
  const auto bytes = std::make_shared<device::PeakBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  f();
  return bytes->peak();
}

} // namespace trireme::test
