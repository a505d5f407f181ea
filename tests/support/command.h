#pragma once

#include <cstdio>
#include <string>
#include <utility>

namespace trireme::test {

/// Runs a shell command; its exit status and all it wrote to stdout and stderr.
inline std::pair<int, std::string> run_command(const std::string& command) {
  FILE* pipe = popen(("exec 2>&1; " + command).c_str(), "r");
  if (pipe == nullptr) {
    return {-1, "popen failed"};
  }
  std::string output;
  char buffer[4096];
  size_t count = 0;
  while ((count = fread(buffer, 1, sizeof(buffer), pipe)) > 0) {
    output.append(buffer, count);
  }
  const int status = pclose(pipe);
  return {status == -1 ? -1 : (status & 0x7f) != 0 ? 128 + (status & 0x7f) : (status >> 8) & 0xff, output};
}

/// Starts the demo as `ranks` background processes that are told everything by the plain variables.
inline std::string plain_start(const std::string& program, int ranks, int port) {
  std::string command;
  for (int rank = 0; rank < ranks; ++rank) {
    command += "RANK=" + std::to_string(rank) + " WORLD_SIZE=" + std::to_string(ranks) +
               " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port) + " " + program + " & ";
  }
  return command + "wait";
}

} // namespace trireme::test
