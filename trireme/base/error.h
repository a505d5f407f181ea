#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace trireme {

/// Writes every argument with operator<< and returns the text.
template <typename... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// An error for the user.
///
/// `what()` is "[part] happened. next": what was required and what was found, where, and what to type or change next.
/// No stack trace, no error code alone.
class Error : public std::runtime_error {
 public:
  Error(std::string_view part, const std::string& happened, const std::string& next = "");

  /// The exit status of the process after this error (1: anything but input).
  virtual int exit_code() const noexcept { return 1; }
};

/// The user's input is wrong: a file, a key, a flag, a value. Exit status 2.
class InputError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 2; }
};

/// A peer died, the network failed or a collective timed out. The group it
/// happened in is unusable afterwards; restart from the last checkpoint.
class PeerError : public Error {
 public:
  using Error::Error;
};

} // namespace trireme
