#pragma once

#include <trireme/store/secret.h>
#include <trireme/store/sockets.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace trireme::comm {

/// What rank 0 leaves in a file for the other ranks of its host: where it listens, which an mpirun does not tell them, and the
/// secret that it has made where the job came without one. The file is for this user only (0600).
struct MeetingNote {
  store::Endpoint endpoint;
  store::Secret secret;
};

/// The file's path from Environment::meeting_file: a path, or "parent" for one in the user's private folder (0700) below the
/// temporary one, named after the common parent process and its start time.
/// Errors: Error when that folder cannot be made or is not the user's own.
std::string meeting_path(const std::string& file);

/// The file of a job whose ranks know where to meet, in the same folder: named after the port, and the network that it is in.
/// Errors: as above.
std::string meeting_path(int port);

/// Writes the file atomically, and removes it with the object. Errors: Error.
class PublishedMeeting {
 public:
  /// Nothing.
  PublishedMeeting() = default;
  PublishedMeeting(std::string path, const MeetingNote& note);
  PublishedMeeting(PublishedMeeting&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  PublishedMeeting& operator=(PublishedMeeting&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~PublishedMeeting();

 private:
  std::string path_;
};

/// nullopt when there is none, when its writer has ended (an earlier job was killed), or when it is not a file of this user that
/// nobody else may read.
std::optional<MeetingNote> find_meeting(const std::string& path);

/// Polls for the file. Errors: PeerError when it is not there in time.
MeetingNote read_meeting(const std::string& path, std::chrono::steady_clock::time_point deadline);

} // namespace trireme::comm
