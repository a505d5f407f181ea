#pragma once

#include <trireme/base/error.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <unistd.h>

namespace trireme::test {

/// A control group of its own that holds at most so many bytes. Empty where this user may not make one.
class LimitedGroup {
 public:
  explicit LimitedGroup(int64_t bytes) {
    namespace fs = std::filesystem;
    for (const auto& [root, limit] : {std::pair("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), std::pair("/sys/fs/cgroup", "memory.max")}) {
      const fs::path folder = fs::path(root) / concat("trireme_test_", ::getpid());
      std::error_code failed;
      if (!fs::exists(fs::path(root) / "cgroup.procs") || !fs::create_directory(folder, failed)) {
        continue;
      }
      folder_ = folder;
      if (std::ofstream(folder / limit) << bytes << std::flush) {
        return;
      }
      fs::remove(folder, failed);
      folder_.clear();
    }
  }
  ~LimitedGroup() {
    std::error_code ignored;
    std::filesystem::remove(folder_, ignored);
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;

  bool exists() const {
    return !folder_.empty();
  }
  /// Shell words that move the shell, and what it starts, into the group.
  std::string enter() const {
    return concat("echo $$ > ", (folder_ / "cgroup.procs").string(), " && ");
  }
  /// Moves this process into the group: what it takes from now on counts.
  void join() const {
    if (!(std::ofstream(folder_ / "cgroup.procs") << ::getpid() << std::flush)) {
      throw Error("test", "this process could not be moved into its control group");
    }
  }

 private:
  std::filesystem::path folder_;
};

/// Where there is swap, a group that is too large is slow, not killed.
inline bool machine_swaps() {
  std::ifstream swaps("/proc/swaps");
  std::string line;
  return std::getline(swaps, line) && std::getline(swaps, line);
}

} // namespace trireme::test
