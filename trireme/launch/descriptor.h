#pragma once

#include <trireme/base/descriptor.h>

#include <string>
#include <vector>

namespace trireme::launch {

struct Pipe {
  Descriptor read;
  Descriptor write;
};

/// Makes a pipe that no program started later inherits. Throws Error when the system has no descriptors left.
Pipe make_pipe();

/// /dev/null for reading.
Descriptor open_null();

/// Makes reads of `fd` non-blocking. Only for ends that no other process shares.
void set_nonblocking(int fd);

/// Between fork and exec: makes exec close every descriptor from `first` on. Allocates nothing.
void close_on_exec_from(int first);

/// In a forked process: closes every descriptor but these.
void close_all_but(std::vector<int> kept);

/// Opens /dev/null for each of 0, 1 and 2 that is closed, so that no pipe gets these numbers.
void fill_standard_descriptors();

/// A listening TCP socket on a free port, which no other process can take before it is used.
struct MeetingPoint {
  Descriptor socket;
  int port = 0;
};

/// Listens on exactly this address (a name or a number) and no other interface.
/// Errors: InputError when the name is unknown or the address is not of this machine.
MeetingPoint open_meeting_point(const std::string& address, int ranks);

} // namespace trireme::launch
