#include <trireme/device/numa.h>

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace trireme::device {
namespace {

/// Linux's own limit is 8,192 cores; a fixed cpu_set_t has 1,024.
constexpr int kMostCores = CPU_SETSIZE;

/// Binds each thread of this process; false if one could not be bound.
bool bind_threads(const cpu_set_t& cores) {
  bool all = true;
  std::error_code none;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none)) {
    const std::string number = thread.path().filename();
    pid_t id = 0;
    std::from_chars(number.data(), number.data() + number.size(), id);
    all = (id > 0 && ::sched_setaffinity(id, sizeof(cores), &cores) == 0) && all;
  }
  return all;
}

std::string list_of(const cpu_set_t& cores) {
  std::string list;
  for (int first = 0; first < kMostCores; ++first) {
    if (!CPU_ISSET(first, &cores)) {
      continue;
    }
    int last = first;
    while (last + 1 < kMostCores && CPU_ISSET(last + 1, &cores)) {
      ++last;
    }
    list += (list.empty() ? "" : ",") + std::to_string(first) + (last > first ? "-" + std::to_string(last) : "");
    first = last;
  }
  return list;
}

} // namespace

std::vector<int> cores_of_list(const std::string& list) {
  std::vector<int> cores;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0;
    const char* const end = part.data() + part.size();
    auto read = std::from_chars(part.data(), end, first);
    int last = first;
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
    }
    if (read.ec != std::errc() || read.ptr != end || first < 0 || last < first || last >= kMostCores) {
      return {};
    }
    for (int core = first; core <= last; ++core) {
      cores.push_back(core);
    }
  }
  return cores;
}

std::string bind_near(const std::string& pci, const std::string& devices) {
  std::string name = pci; // CUDA writes 0000:3B:00.0, the system 0000:3b:00.0
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream in(devices + "/" + name + "/local_cpulist");
  std::string list;
  cpu_set_t allowed;
  if (name.empty() || !std::getline(in, list) || ::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return "";
  }
  cpu_set_t near;
  CPU_ZERO(&near);
  for (const int core : cores_of_list(list)) {
    if (CPU_ISSET(core, &allowed)) {
      CPU_SET(core, &near);
    }
  }
  if (CPU_COUNT(&near) == 0 || CPU_EQUAL(&near, &allowed)) {
    return "";
  }
  if (!bind_threads(near)) {
    bind_threads(allowed);
    return "";
  }
  return list_of(near);
}

} // namespace trireme::device
