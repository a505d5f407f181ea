#include <trireme/comm/meeting_file.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
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

std::string path_of(const std::string& file) {
  if (file != "parent") {
    return file;
  }
  const char* temporary = std::getenv("TMPDIR");
  const std::string folder = concat(temporary != nullptr ? temporary : "/tmp", "/trireme-", getuid());
  mkdir(folder.c_str(), 0700);
  struct stat status {};
  if (lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != getuid() || (status.st_mode & 077) != 0) {
    throw Error("comm", concat("the folder ", folder, " is not this user's own private one."),
                "Remove it, or set MASTER_ADDR=127.0.0.1 and MASTER_PORT to a free port.");
  }
  return concat(folder, "/meeting-", getppid(), "-", start_time(getppid()));
}

} // namespace

void publish_meeting(const std::string& file, const store::Endpoint& endpoint) {
  write_file_atomically(path_of(file), concat(endpoint.host, " ", endpoint.port, " ", getpid(), " ", start_time(getpid()), "\n"));
}

void remove_meeting(const std::string& file) {
  unlink(path_of(file).c_str());
}

store::Endpoint read_meeting(const std::string& file, std::chrono::steady_clock::time_point deadline) {
  const std::string path = path_of(file);
  while (true) {
    std::ifstream stream(path);
    store::Endpoint endpoint;
    pid_t writer = 0;
    std::string writer_start;
    // A file that an earlier program of the same mpirun left behind names a process that is gone.
    if (stream >> endpoint.host >> endpoint.port >> writer >> writer_start && start_time(writer) == writer_start) {
      return endpoint;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw PeerError("comm", concat("rank 0 has not written ", path, ", where the ranks of this host meet."),
                      "Look at the output of rank 0; with ranks on several hosts set MASTER_ADDR and MASTER_PORT (mpirun -x ...).");
    }
    std::this_thread::sleep_for(kRetry);
  }
}

} // namespace trireme::comm
