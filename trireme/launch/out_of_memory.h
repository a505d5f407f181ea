#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace trireme::launch {

/// Tells whether a killed process was killed because its control group ran out of memory, by the counters that the kernel keeps:
/// memory.events (version 2) and memory.oom_control (version 1), "oom_kill N". With version 2 the group may be the process's own,
/// with version 1 only that of this process (the container, the batch job).
class OutOfMemoryWatch {
 public:
  /// Remembers where the counter of this process's own group stands. `cgroups` is where they are mounted.
  explicit OutOfMemoryWatch(std::filesystem::path cgroups = "/sys/fs/cgroup", std::filesystem::path proc = "/proc");

  /// For a process that SIGKILL ended and that has not been reaped. True once for each time a counter has risen.
  bool killed(pid_t pid);

 private:
  std::optional<std::filesystem::path> counter_file(const std::string& pid, bool lives) const;
  static std::optional<int64_t> count(const std::filesystem::path& file);

  std::filesystem::path cgroups_;
  std::filesystem::path proc_;
  std::map<std::filesystem::path, int64_t> seen_;
};

} // namespace trireme::launch
