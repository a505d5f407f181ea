#include <trireme/launch/out_of_memory.h>

#include <trireme/base/error.h>

#include <fstream>

namespace trireme::launch {

namespace fs = std::filesystem;

namespace {

// Whether the group has another process. Ended processes are not listed.
bool shared(const fs::path& group, pid_t pid) {
  std::ifstream members(group / "cgroup.procs");
  if (!members) {
    return true;
  }
  for (pid_t member = 0; members >> member;) {
    if (member != pid) {
      return true;
    }
  }
  return false;
}

} // namespace

OutOfMemoryWatch::OutOfMemoryWatch(fs::path cgroups, fs::path proc)
    : cgroups_(std::move(cgroups)), proc_(std::move(proc)), own_(counter_file("self", true)) {
  if (own_) {
    seen_[*own_] = count(*own_).value_or(0);
  }
}

// Lines of /proc/PID/cgroup: "0::/user.slice/job" (version 2), "4:memory:/job" (version 1).
std::optional<fs::path> OutOfMemoryWatch::counter_file(const std::string& pid, bool lives) const {
  std::ifstream lines(proc_ / pid / "cgroup");
  std::optional<fs::path> found;
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size()) {
      continue;
    }
    const std::string controllers = concat(",", line.substr(first + 1, second - first - 1), ",");
    const std::string group = line.substr(second + 2); // relative
    fs::path file;
    if (controllers == ",,") {
      file = cgroups_ / group / "memory.events.local"; // without the groups below
      file = count(file) ? file : cgroups_ / group / "memory.events";
    } else if (lives &&
               controllers.find(",memory,") != std::string::npos) { // one that has ended counts as the root's there
      file = cgroups_ / "memory" / group / "memory.oom_control";
    }
    if (!file.empty() && count(file)) {
      found = file;
    }
  }
  return found;
}

std::optional<int64_t> OutOfMemoryWatch::count(const fs::path& file) {
  std::ifstream words(file);
  std::string key;
  for (int64_t value = 0; words >> key >> value;) {
    if (key == "oom_kill") {
      return value;
    }
  }
  return std::nullopt;
}

OutOfMemory OutOfMemoryWatch::killed(pid_t pid) {
  const auto known = counter_file(std::to_string(pid), false);
  const auto file = known ? known : own_;
  if (!file) {
    return OutOfMemory::no;
  }
  int64_t& seen = seen_.emplace(*file, 0).first->second; // a group made for this rank begins at 0
  if (count(*file).value_or(0) <= seen) {
    return OutOfMemory::no;
  }
  ++seen;
  return file == own_ || shared(file->parent_path(), pid) ? OutOfMemory::perhaps : OutOfMemory::yes;
}

} // namespace trireme::launch
