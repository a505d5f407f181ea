#pragma once

#include <trireme/launch/place.h>

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace trireme::launch {

/// Says whether a process was killed because its control group ran out of memory, from the kernel's counter for
/// that group: memory.events.local or memory.events (version 2), memory.oom_control (version 1), "oom_kill N". With
/// version 1 the group of an ended process is unknown, and the group of this process (the container, the batch job) is
/// used. The kernel counts kills without naming the process, so the answer is certain only if the process had a group
/// of its own.
class OutOfMemoryWatch {
 public:
  /// Reads the counter of this process's own group. `cgroups` is where control groups are mounted.
  explicit OutOfMemoryWatch(std::filesystem::path cgroups = "/sys/fs/cgroup", std::filesystem::path proc = "/proc");

  /// Call it for a process that SIGKILL ended, before it is reaped. Each count of the kernel explains one process.
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
