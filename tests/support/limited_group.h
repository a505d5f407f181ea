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
    for (const Names& names :
         {Names{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"},
          Names{"/sys/fs/cgroup", "memory.max", "memory.current", ""}}) {
      const fs::path folder = fs::path(names.root) / concat("trireme_test_", ::getpid());
      std::error_code failed;
      if (!fs::exists(fs::path(names.root) / "cgroup.procs") || !fs::create_directory(folder, failed)) {
        continue;
      }
      folder_ = folder;
      names_ = names;
      if (std::ofstream(folder / names.limit) << bytes << std::flush) {
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

  bool exists() const { return !folder_.empty(); }
  /// Shell words that move the shell, and what it starts, into the group.
  std::string enter() const { return concat("echo $$ > ", (folder_ / "cgroup.procs").string(), " && "); }
  /// What the system cannot take from it: all that is charged but pages of files, those of programs and libraries among
  /// them.
  int64_t held_bytes() const {
    int64_t held = 0;
    std::ifstream(folder_ / names_.usage) >> held;
    std::ifstream counters(folder_ / "memory.stat");
    std::string name;
    for (int64_t value = 0; counters >> name >> value;) {
      held -=
          name == concat(names_.of_all, "inactive_file") || name == concat(names_.of_all, "active_file") ? value : 0;
    }
    return held;
  }
  /// Moves this process into the group: what it takes from now on counts.
  void join() const {
    if (!(std::ofstream(folder_ / "cgroup.procs") << ::getpid() << std::flush)) {
      throw Error("test", "this process could not be moved into its control group");
    }
  }

 private:
  struct Names { // of version 1 and 2
    const char* root = "";
    const char* limit = "";
    const char* usage = "";
    const char* of_all = ""; // before the names of memory.stat that count groups below too
  };
  std::filesystem::path folder_;
  Names names_;
};

/// Where there is swap, a group that is too large is slow, not killed.
inline bool machine_swaps() {
  std::ifstream swaps("/proc/swaps");
  std::string line;
  return std::getline(swaps, line) && std::getline(swaps, line);
}

} // namespace trireme::test
