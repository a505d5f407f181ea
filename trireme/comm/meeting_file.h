#pragma once

#include <trireme/store/sockets.h>

#include <chrono>
#include <string>

namespace trireme::comm {

/// How ranks of one host find each other under an mpirun that gives no address: rank 0 writes
/// where it listens into a file that all of them know. `file` is a path, or "parent" for one
/// in a private folder (0700) named after the common parent process and its start time.

/// Writes the address atomically.
/// Errors: Error when the folder cannot be made or is not the user's own.
void publish_meeting(const std::string& file, const store::Endpoint& endpoint);

/// Removes what publish_meeting wrote; nothing happens when it is gone.
void remove_meeting(const std::string& file);

/// Polls for the file. Errors: PeerError when it is not there in time.
store::Endpoint read_meeting(const std::string& file, std::chrono::steady_clock::time_point deadline);

} // namespace trireme::comm
