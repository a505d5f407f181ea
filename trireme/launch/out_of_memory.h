#pragma once

#include <trireme/launch/place.h>

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace trireme::launch {

/// Detects that a process was killed because its control group ran out of memory. It reads the kernel's counter of
/// that group: memory.events.local or memory.events (version 2), memory.oom_control (version 1), "oom_kill N". In
/// version 1 the group of an ended process is unknown, so that of this process (the container, the batch job) is
/// used. The kernel counts kills without naming the process: the answer is certain only if the process had its own
/// group.
class OutOfMemoryWatch {
 public:
  /// Reads the counter of this process's own group. `cgroups` is where control groups are mounted.
  explicit OutOfMemoryWatch(std::filesystem::path cgroups = "/sys/fs/cgroup", std::filesystem::path proc = "/proc");

  /// Call it for a process ended by SIGKILL, before reaping it. Each kill that the kernel counts explains one.
  OutOfMemory killed(pid_t pid);

 private:
  std::optional<std::filesystem::path> counter_file(const std::string& pid, bool lives) const;
  static std::optional<int64_t> count(const std::filesystem::path& file);

  std::filesystem::path cgroups_;
  std::filesystem::path proc_;
  std::optional<std::filesystem::path> own_;
  std::map<std::filesystem::path, int64_t> seen_;
};

} // namespace trireme::launch
