#include <trireme/comm/meeting_file.h>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/hash.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

namespace trireme::comm {
namespace {

constexpr std::chrono::milliseconds kRetry{10};

/// Field 22 of /proc/PID/stat: two processes with one number never share it.
std::string start_time(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return "0";
  }
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int index = 3; index <= 22; ++index) {
    fields >> field;
  }
  return field;
}

/// "-" stands for no secret.
constexpr const char* kNone = "-";

std::string private_folder() {
  const char* temporary = std::getenv("TMPDIR");
  const std::string folder = concat(temporary != nullptr ? temporary : "/tmp", "/trireme-", getuid());
  const int code = mkdir(folder.c_str(), 0700) == 0 ? 0 : errno;
  struct stat status{};
  if (lstat(folder.c_str(), &status) != 0) {
    throw Error(
        "comm",
        concat("cannot make the folder ", folder, " for the notes of this host's ranks: ", std::strerror(code), "."),
        "Set TMPDIR to a folder of yours, the same for all ranks.");
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != getuid() || (status.st_mode & 077) != 0) {
    throw Error("comm", concat("the folder ", folder, " is not a private folder of this user."),
                "Remove it, or set TMPDIR to a folder of yours, the same for all ranks.");
  }
  return folder;
}

/// The text of a file that only this user may read, "" for any other.
std::string read_private(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status{};
  char text[512];
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != ::geteuid() ||
      (status.st_mode & 077) != 0) {
    return "";
  }
  const ssize_t size = ::read(file.get(), text, sizeof(text));
  return std::string(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
}

} // namespace

std::string meeting_path(const std::string& file) {
  return file == "parent" ? concat(private_folder(), "/meeting-", getppid(), "-", start_time(getppid())) : file;
}

std::string meeting_path(const store::Endpoint& endpoint, const std::string& job) {
  // The same port of another network (of a container), or of another address, belongs to another job.
  struct stat network{};
  ::stat("/proc/self/ns/net", &network);
  const std::string of_job = job.empty() ? "" : concat("-", std::hex, fnv1a(job)); // a name may contain any character
  return concat(private_folder(), "/port-", network.st_ino, "-", endpoint.host, "-", endpoint.port, of_job);
}

PublishedMeeting::PublishedMeeting(std::string path, const MeetingNote& note) : path_(std::move(path)) {
  write_file_atomically(
      path_, concat(note.endpoint.host, " ", note.endpoint.port, " ", getpid(), " ", start_time(getpid()), " ",
                    note.secret.empty() ? kNone : note.secret.hex(), "\n"));
}

PublishedMeeting::~PublishedMeeting() {
  if (!path_.empty()) {
    unlink(path_.c_str());
  }
}

std::optional<MeetingNote> find_meeting(const std::string& path) {
  std::istringstream words(read_private(path));
  MeetingNote note;
  pid_t writer = 0;
  std::string writer_start;
  std::string secret;
  if (!(words >> note.endpoint.host >> note.endpoint.port >> writer >> writer_start >> secret) ||
      start_time(writer) != writer_start) {
    return std::nullopt;
  }
  if (secret != kNone) {
    const auto read = store::Secret::from_hex(secret);
    if (!read) {
      return std::nullopt;
    }
    note.secret = *read;
  }
  return note;
}

MeetingNote read_meeting(const std::string& path, std::chrono::steady_clock::time_point deadline) {
  while (true) {
    if (const auto note = find_meeting(path)) {
      return *note;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw PeerError(
          "comm", concat("rank 0 has not written ", path, ", where the ranks of this host connect."),
          "Look at the output of rank 0; with ranks on several hosts set MASTER_ADDR and MASTER_PORT (mpirun -x ...).");
    }
    std::this_thread::sleep_for(kRetry);
  }
}

} // namespace trireme::comm
