#pragma once

#include <trireme/launch/descriptor.h>

#include <sys/types.h>

namespace trireme::launch {

/// A second process that outlives the launcher by a moment: when the launcher is killed, it kills the process groups of the
/// ranks. The kernel's PR_SET_PDEATHSIG ends only the ranks themselves, not what they started.
///
/// It sits in a session of its own and blocks all signals, so what ends the launcher does not end it first.
class Guardian {
 public:
  explicit Guardian(int ranks);
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const {
    return pid_;
  }
  /// A rank writes its pid here (4 bytes) when it starts.
  int fd() const {
    return pipe_.get();
  }
  /// The rank has been reaped: its number may soon be somebody else's.
  void forget(pid_t rank);

 private:
  Descriptor pipe_;
  pid_t pid_ = -1;
};

} // namespace trireme::launch
