#include <trireme/launch/descendants.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace trireme::launch {
namespace {

struct Entry {
  pid_t parent = 0;
  char state = 'Z';
};

// From /proc/<pid>/stat: "pid (any text) S ppid ...".
bool read_entry(pid_t pid, Entry& entry) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  char text[512];
  const ssize_t size = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  if (size <= 0) {
    return false;
  }
  text[size] = 0;
  const char* const after_name = std::strrchr(text, ')');
  if (after_name == nullptr || std::strlen(after_name) < 5) {
    return false;
  }
  entry.state = after_name[2];
  entry.parent = static_cast<pid_t>(std::atoi(after_name + 4));
  return true;
}

} // namespace

std::vector<pid_t> descendants(pid_t ancestor) {
  std::multimap<pid_t, std::pair<pid_t, char>> children;
  DIR* const folder = ::opendir("/proc");
  if (folder == nullptr) {
    return {};
  }
  while (const dirent* item = ::readdir(folder)) {
    const auto pid = static_cast<pid_t>(std::atoi(item->d_name));
    Entry entry;
    if (pid > 0 && read_entry(pid, entry)) {
      children.emplace(entry.parent, std::pair(pid, entry.state));
    }
  }
  ::closedir(folder);

  std::vector<pid_t> found;
  std::vector<pid_t> open = {ancestor};
  while (!open.empty()) {
    const auto [begin, end] = children.equal_range(open.back());
    open.pop_back();
    for (auto it = begin; it != end; ++it) {
      const auto [pid, state] = it->second;
      open.push_back(pid);
      if (state != 'Z') {
        found.push_back(pid);
      }
    }
  }
  return found;
}

std::map<pid_t, int> kill_children() {
  std::map<pid_t, int> ends;
  const auto until = std::chrono::steady_clock::now() + kKillPatience;
  for (;;) {
    for (const pid_t pid : descendants(::getpid())) {
      ::kill(pid, SIGKILL);
    }
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(-1, &status, WNOHANG)) > 0) {
      ends[ended] = status;
    }
    if ((ended < 0 && errno == ECHILD) || std::chrono::steady_clock::now() >= until) {
      return ends;
    }
    ::usleep(2000);
  }
}

OrphanAdoption::OrphanAdoption() {
  ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

OrphanAdoption::~OrphanAdoption() {
  ::prctl(PR_SET_CHILD_SUBREAPER, before_);
}

} // namespace trireme::launch
