#include <trireme/plan/estimate/machine_memory.h>

#include <trireme/base/error.h>

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

namespace trireme::estimate {
namespace {

namespace fs = std::filesystem;

// The number after a word at the begin of a line: "MemAvailable:  123 kB", "inactive_file 123".
std::optional<int64_t> number_after(const fs::path& file, const std::string& word) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name >> value && name == word) {
      return value;
    }
  }
  return std::nullopt;
}

// Nothing for "max" or a missing file.
std::optional<int64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

void lower_to(MemoryAtHand& memory, int64_t bytes, const std::string& source) {
  if (bytes < memory.bytes) {
    memory.bytes = std::max<int64_t>(0, bytes);
    memory.source = source;
  }
}

struct Names {
  const char* limit;
  const char* usage;
  const char* inactive;
  const char* active;
};
constexpr Names kVersion2 = {"memory.max", "memory.current", "inactive_file", "active_file"};
constexpr Names kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                             "total_active_file"};

// Applies the limits of the group and all its parents; the tightest counts. In a container the path may exist only on
// the host; then the root is the group.
void limit_by_groups(MemoryAtHand& memory, const fs::path& root, fs::path group, const Names& names) {
  for (bool last = false; !last; group = group.parent_path()) {
    last = group == group.root_path() || group.empty();
    const fs::path folder = root / group.relative_path();
    const auto limit = number_in(folder / names.limit);
    const auto usage = number_in(folder / names.usage);
    if (!limit || !usage) {
      continue;
    }
    const int64_t droppable = number_after(folder / "memory.stat", names.inactive).value_or(0) +
                              number_after(folder / "memory.stat", names.active).value_or(0);
    lower_to(memory, *limit - *usage + std::min(*usage, droppable),
             concat("the control group ", group.string(), " leaves"));
  }
}

} // namespace

MemoryAtHand memory_at_hand(const fs::path& proc, const fs::path& cgroups) {
  MemoryAtHand memory;
  if (const auto available = number_after(proc / "meminfo", "MemAvailable:")) {
    lower_to(memory, 1024 * (*available + number_after(proc / "meminfo", "SwapFree:").value_or(0)),
             "this machine has free");
  }
  std::ifstream lines(proc / "self" / "cgroup");
  for (std::string line; std::getline(lines, line);) { // "0::/path" or "7:memory:/path"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = concat(',', line.substr(first + 1, second - first - 1), ',');
    if (controllers == ",,") {
      limit_by_groups(memory, cgroups, line.substr(second + 1), kVersion2);
    } else if (controllers.find(",memory,") != std::string::npos) {
      limit_by_groups(memory, cgroups / "memory", line.substr(second + 1), kVersion1);
    }
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    memory.process_bytes =
        static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, static_cast<rlim_t>(MemoryAtHand::kUnlimited)));
  }
  return memory;
}

} // namespace trireme::estimate
