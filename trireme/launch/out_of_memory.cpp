#include <trireme/launch/out_of_memory.h>

#include <trireme/base/error.h>

#include <fstream>

namespace trireme::launch {

namespace fs = std::filesystem;

OutOfMemoryWatch::OutOfMemoryWatch(fs::path cgroups, fs::path proc) : cgroups_(std::move(cgroups)), proc_(std::move(proc)) {
  if (const auto file = counter_file("self", true)) {
    seen_[*file] = count(*file).value_or(0);
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
    const std::string group = line.substr(second + 2);  // relative
    fs::path file;
    if (controllers == ",,") {
      file = cgroups_ / group / "memory.events";
    } else if (lives && controllers.find(",memory,") != std::string::npos) {  // one that has ended counts as the root's there
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

bool OutOfMemoryWatch::killed(pid_t pid) {
  if (const auto file = counter_file(std::to_string(pid), false)) {
    seen_.emplace(*file, 0);  // a group made for this rank begins at 0
  }
  for (auto& [file, seen] : seen_) {
    if (count(file).value_or(0) > seen) {
      ++seen;
      return true;
    }
  }
  return false;
}

} // namespace trireme::launch
