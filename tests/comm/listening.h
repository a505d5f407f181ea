#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace trireme::comm::test {

/// A listening TCP socket as the kernel lists it.
struct Listening {
  /// Hexadecimal, as in /proc/net/tcp: "0100007F" is 127.0.0.1.
  std::string address;
  int port = 0;
};

/// Those of this process, from /proc/net/tcp and tcp6.
inline std::vector<Listening> own_listening_sockets() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error);
    if (target.rfind("socket:[", 0) == 0) {
      own.insert(target.substr(8, target.size() - 9));
    }
  }
  std::vector<Listening> found;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
      if (state == "0A" && own.count(inode) == 1) {
        const size_t colon = local.find(':');
        found.push_back({local.substr(0, colon), std::stoi(local.substr(colon + 1), nullptr, 16)});
      }
    }
  }
  return found;
}

inline size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

} // namespace trireme::comm::test
