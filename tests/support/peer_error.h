#pragma once

#include <trireme/base/error.h>

#include <functional>
#include <string>

namespace trireme::test {

/// The text of the Error that the call ends with.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no Error";
}

/// The text of the PeerError that the call ends with.
inline std::string peer_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const PeerError& error) {
    return error.what();
  }
  return "no PeerError";
}

} // namespace trireme::test
