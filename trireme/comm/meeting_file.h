#pragma once

#include <trireme/store/secret.h>
#include <trireme/store/sockets.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace trireme::comm {

/// Note from rank 0 to the other ranks of its host, in a file: its address, which mpirun does not give them, and the
/// secret that it made if the job has none. Only this user can read the file (0600).
struct MeetingNote {
  store::Endpoint endpoint;
  store::Secret secret;
};

/// The file's path from Environment::meeting_file: a path, or "parent" for a file in the user's private folder (0700)
/// below the temporary one, named after the common parent process and its start time. Errors: Error if that folder
/// cannot be created or is not the user's own.
std::string meeting_path(const std::string& file);

/// The path for a job whose ranks know the address, in the same folder: named after the numeric address, the port,
/// their network namespace and the job. Errors: as above.
std::string meeting_path(const store::Endpoint& endpoint, const std::string& job);

/// Writes the file atomically and removes it when destroyed. Errors: Error.
class PublishedMeeting {
 public:
  /// Publishes nothing.
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

/// Returns nullopt if there is no file, if its writer has ended (an earlier job was killed), or if it is not a private
/// file of this user.
std::optional<MeetingNote> find_meeting(const std::string& path);

/// Polls for the file. Errors: PeerError if it does not appear in time.
MeetingNote read_meeting(const std::string& path, std::chrono::steady_clock::time_point deadline);

} // namespace trireme::comm
