#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

namespace trireme::estimate {

/// Memory of this host that a run may use, and the source of the limit.
struct MemoryAtHand {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  /// All ranks combined: free memory and what the system can free.
  int64_t bytes = kUnlimited;
  /// "this machine has free", "the control group /job leaves".
  std::string source = "unlimited";
  /// One process: the limit of its address space (ulimit -v).
  int64_t process_bytes = kUnlimited;
  /// Free on a rank's GPU, where that is known: only ranks can ask.
  int64_t device_bytes = kUnlimited;
};

/// Reads MemAvailable and free swap; the limits of this process's control groups (versions 1 and 2, with their parents)
/// less what they use and cannot drop; and RLIMIT_AS. A value that cannot be read sets no limit.
MemoryAtHand memory_at_hand(const std::filesystem::path& proc = "/proc",
                            const std::filesystem::path& cgroups = "/sys/fs/cgroup");

} // namespace trireme::estimate
